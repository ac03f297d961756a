package rule

import "holdfast/internal/hosts/doctor/fact"

// What any machine that runs containers does. They are floors, far below what is
// usual: an emulated CPU is under them.
const (
	floorCPU  = 50  // MiB/s of SHA-256
	floorMem  = 500 // MiB/s copied
	floorSync = 250 // ms
	// mostSteal is of all CPUs' time: from where on waits for a CPU (see
	// noisy-neighbour) are the hypervisor's.
	mostSteal = 0.10
)

// slowMachine says that the machine itself is what is slow.
func slowMachine() Rule {
	return Rule{
		Name:      "slow-machine",
		Signal:    "SHA-256 and copying on one thread, by its CPU time; the median of 16 small writes with fdatasync; stolen time (/proc/stat)",
		Threshold: "under 50 MiB/s of SHA-256, under 500 MiB/s copied, over 250 ms a write, over 10 % of the CPUs' time stolen",
		Why:       "where the raw machine is slow nothing that is said of containers explains it. It is the check with sysbench that comes first in every such story",
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
				Cures:    []Cure{{What: "Look at the machine or its hypervisor first: clock, steal time, disk.", Command: "vmstat 1 5"}},
			}}
		},
	}
}
