package rule

import "holdfast/internal/hosts/doctor/fact"

// Lower limits for a machine that runs containers. They are far below the usual values;
// an emulated CPU does not reach them.
const (
	floorCPU  = 50  // MiB/s of SHA-256
	floorMem  = 500 // MiB/s copied
	floorSync = 250 // ms
	floorRead = 100 // ms
	// mostSteal is a share of all CPUs' time. Above it the hypervisor causes the waits
	// for a CPU (see noisy-neighbour).
	mostSteal = 0.10
	// mostThermal is the number of times a second that heat slows cores down.
	mostThermal = 1
)

// A machine is slower than it was if a figure is this many times worse than the median of its
// earlier tests. The disk's times vary more, and short ones do not matter.
const (
	worseRate = 1.5
	worseTime = 5
	shortTime = 10 // ms
)

// figure is one of the machine's figures.
type figure struct {
	name, what string
	rate       bool    // more is better: MiB/s. Otherwise a time in ms.
	limit      float64 // the least rate, or the longest time
}

func figures() []figure {
	return []figure{
		{fact.CheckCPU, "SHA-256 on one thread", true, floorCPU},
		{fact.CheckMem, "memory copied by one thread", true, floorMem},
		{fact.CheckDisk, "a small write with fdatasync, median", false, floorSync},
		{fact.CheckRead, "a random read of 4 KiB, median", false, floorRead},
	}
}

// judge compares a figure with its limit and with this host's past, if that is known.
func (f figure) judge(s *fact.Set) (e Evidence, slow, slower, ok bool) {
	v, ok := s.Host(f.name)
	past, known := s.Host(fact.Past + f.name)
	show, bound := millis, "under "
	slow, slower = v > f.limit, known && v > max(worseTime*past, shortTime)
	if f.rate {
		show, bound = func(v float64) string { return number(v) + " MiB/s" }, "over "
		slow, slower = v < f.limit, known && v*worseRate < past
	}
	e = Evidence{f.what, show(v), bound + show(f.limit)}
	if known {
		e.Healthy += ", usually " + show(past)
	}
	return e, slow, slower, ok
}

// slowMachine finds that the machine itself is slow, or slower than it was.
func slowMachine() Rule {
	return Rule{
		Name:      "slow-machine",
		Signal:    "SHA-256 and memory copies on one thread, by its CPU time; the medians of 16 small writes with fdatasync, and of 64 random reads with O_DIRECT; the agent's earlier tests of the same; stolen time (/proc/stat); slowdowns by heat (thermal_throttle in sysfs)",
		Threshold: "under 50 MiB/s of SHA-256, under 500 MiB/s copied, over 250 ms a write, over 100 ms a read; a rate under two thirds of this host's median, a time over 5 times its median and over 10 ms; over 10 % of the CPUs' time stolen; over 1 slowdown by heat a second",
		Why:       "if the machine itself is slow, no finding about containers explains it. Published investigations of slow hosts start with this check, by sysbench",
		Source:    "judgement: a tenth of what small virtual machines do; proc_stat(5)",
		Needs:     []string{fact.CheckCPU, fact.CheckMem},
		Judge: func(s *fact.Set) []Finding {
			var e []Evidence
			slow, slower := false, false
			for _, f := range figures() {
				one, isSlow, isSlower, ok := f.judge(s)
				if ok {
					e, slow, slower = append(e, one), slow || isSlow, slower || isSlower
				}
			}
			if steal, _ := s.Host(fact.CPUSteal); steal > 0 {
				e, slow = append(e, Evidence{"CPU time that the hypervisor kept", percent(steal), "under 10 %"}), slow || steal > mostSteal
			}
			if heat, _ := s.Host(fact.CPUThermal); heat > 0 {
				e, slow = append(e, Evidence{"times that heat slowed a core down", perSecond(heat), "none"}), slow || heat > mostThermal
			}
			f := Finding{Severity: Warning, Title: "the machine itself is slow", Evidence: e,
				Cures: []Cure{{What: "Check the machine or its hypervisor first: clock, steal time, heat, disk.", Command: "vmstat 1 5"}}}
			switch {
			case slow:
			case slower:
				f.Title = "the machine itself is slower than it was"
			default:
				return nil
			}
			return []Finding{f}
		},
	}
}
