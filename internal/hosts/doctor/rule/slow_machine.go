package rule

import "holdfast/internal/hosts/doctor/fact"

// Lower limits for a machine that runs containers. They are far below the usual values;
// an emulated CPU does not reach them.
const (
	floorCPU  = 50  // MiB/s of SHA-256
	floorMem  = 500 // MiB/s copied
	floorSync = 250 // ms
	// mostSteal is a share of all CPUs' time. Above it the hypervisor causes the waits
	// for a CPU (see noisy-neighbour).
	mostSteal = 0.10
)

// slowMachine finds that the machine itself is slow.
func slowMachine() Rule {
	return Rule{
		Name:      "slow-machine",
		Signal:    "SHA-256 and memory copies on one thread, by its CPU time; the median of 16 small writes with fdatasync; stolen time (/proc/stat)",
		Threshold: "under 50 MiB/s of SHA-256, under 500 MiB/s copied, over 250 ms a write, over 10 % of the CPUs' time stolen",
		Why:       "if the machine itself is slow, no finding about containers explains it. Published investigations of slow hosts start with this check, by sysbench",
		Source:    "judgement: a tenth of what small virtual machines do; proc_stat(5)",
		Needs:     []string{fact.CheckCPU, fact.CheckMem},
		Judge: func(s *fact.Set) []Finding {
			cpu, _ := s.Host(fact.CheckCPU)
			mem, _ := s.Host(fact.CheckMem)
			sync, synced := s.Host(fact.CheckDisk)
			steal, _ := s.Host(fact.CPUSteal)
			if cpu >= floorCPU && mem >= floorMem && (!synced || sync <= floorSync) && steal <= mostSteal {
				return nil
			}
			e := []Evidence{
				{"SHA-256 on one thread", number(cpu) + " MiB/s", "over 50 MiB/s"},
				{"memory copied by one thread", number(mem) + " MiB/s", "over 500 MiB/s"},
			}
			if steal > 0 {
				e = append(e, Evidence{"CPU time that the hypervisor kept", percent(steal), "under 10 %"})
			}
			if synced {
				e = append(e, Evidence{"a small write with fdatasync, median", millis(sync), "under 250 ms"})
			}
			return []Finding{{
				Severity: Warning,
				Title:    "the machine itself is slow",
				Evidence: e,
				Cures:    []Cure{{What: "Check the machine or its hypervisor first: clock, steal time, disk.", Command: "vmstat 1 5"}},
			}}
		},
	}
}
