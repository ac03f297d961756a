package rule

import "holdfast/internal/hosts/doctor/fact"

// profilerRate is in interrupts a second on one CPU.
const profilerRate = 10_000

// profiler finds a program that has the CPUs interrupted very often to take samples.
func profiler() Rule {
	return Rule{
		Name:      "profiler",
		Signal:    "interrupts of performance events on the CPU with most: those of the events' unit (/proc/interrupts), and the expiries of their clocks (hrtimer_expire_entry), counted for 0.3 s if a CPU has 8,000 interrupts of its timer a second; the process that opened the events, or else the number of events that each process has open",
		Threshold: "over 10,000/s on a CPU, of processes other than this program. A warning if containers wait for CPUs or disks",
		Why:       "each sample takes time from the program that runs, in whichever container, and counts for that container. Timers of other programs, which are as frequent, are not counted, and neither are tracers, which also hold performance events. Continuous profilers take 19 to 100 samples a second, and perf record 4,000",
		Source:    "perf_event_open(2), perf-record(1). measured on 6.18 with call chains: at 10,000/s a loop made 8 % less progress, at 20,000/s 30 %, at 40,000/s 50 %. The threshold is a judgement",
		Needs:     []string{fact.ProfilerSeen},
		Judge: func(s *fact.Set) []Finding {
			rate, _ := s.Host(fact.ProfilerSamples)
			by, events := s.Of(fact.ProfilerBy), s.Of(fact.ProfilerEvents)
			if rate <= profilerRate || len(by)+len(events) == 0 {
				return nil
			}
			x := Finding{
				Title:    "a profiler interrupts the CPUs very often",
				Evidence: []Evidence{{"interrupts to take samples, on the CPU with most", perSecond(rate), "under 10,000/s"}},
				Cures: []Cure{
					{What: "End the profiler, or let it sample less often: perf record -F 99."},
					{What: "Or let the kernel refuse more.", Command: "sysctl -w kernel.perf_event_max_sample_rate=4000"},
				},
			}
			if len(by) > 0 && by[0].Value > rate/2 {
				x.Culprit = by[0].Subject
				x.Evidence = append(x.Evidence, Evidence{"of these for the process named", perSecond(by[0].Value), "0/s"})
			} else if sum := total(events); len(by) == 0 && events[0].Value > sum/2 {
				x.Culprit = events[0].Subject
				x.Evidence = append(x.Evidence, Evidence{"performance events that the process named has open, of all", number(events[0].Value) + " of " + number(sum), "-"})
			}
			x.Victims = harmed(s, x.Culprit.Cgroup)
			x.Severity = byHarm(x.Victims)
			return []Finding{x}
		},
	}
}
