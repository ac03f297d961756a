package rule

import "holdfast/internal/hosts/doctor/fact"

// profilerRate is in interrupts a second on one CPU. tracingRate and tracingStorm are in events a second
// of an instance of the kernel's tracing: a notice, and a warning.
const (
	profilerRate = 10_000
	tracingRate  = 10_000
	tracingStorm = 100_000
)

// profiler finds a program that has the CPUs interrupted very often to take samples, and tracing of the
// kernel that was left on.
func profiler() Rule {
	return Rule{
		Name:      "profiler",
		Signal:    "interrupts of performance events on the CPU with most: those of the events' unit (/proc/interrupts), and the expiries of their clocks (hrtimer_expire_entry), counted for 0.3 s if a CPU has 8,000 interrupts of its timer a second; the process that opened the events, or else the number of events that each process has open. Events that the kernel's tracing records, by instance of tracefs (per_cpu/cpuN/stats)",
		Threshold: "over 10,000/s on a CPU, of processes other than this program. A warning if containers wait for CPUs or disks. Of tracing: over 10,000 events/s are a notice, and over 100,000/s a warning",
		Why:       "each sample takes time from the program that runs, in whichever container, and counts for that container. Timers of other programs, which are as frequent, are not counted, and neither are tracers, which also hold performance events. Continuous profilers take 19 to 100 samples a second, and perf record 4,000. An event of the kernel's tracing takes 0.1 to 1 µs of the program that causes it, and several with a stack",
		Source:    "perf_event_open(2), perf-record(1). measured on 6.18 with call chains: at 10,000/s a loop made 8 % less progress, at 20,000/s 30 %, at 40,000/s 50 %. The threshold is a judgement",
		Needs:     []string{fact.ProfilerSeen},
		Judge: func(s *fact.Set) []Finding {
			rate, _ := s.Host(fact.ProfilerSamples)
			by, events := s.Of(fact.ProfilerBy), s.Of(fact.ProfilerEvents)
			if rate <= profilerRate || len(by)+len(events) == 0 {
				return tracing(s)
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
			return append([]Finding{x}, tracing(s)...)
		},
	}
}

// tracing finds instances of the kernel's tracing that record very many events.
func tracing(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.TraceEvents) {
		if f.Value <= tracingRate {
			continue
		}
		dir := f.Subject.Device
		found = append(found, Finding{
			Severity: severityOf(f.Value > tracingStorm), Title: "tracing of the kernel is on and records very many events",
			Evidence: []Evidence{{"events that " + dir + " records", perSecond(f.Value), "under 10,000/s"}},
			Cures: []Cure{
				{What: "See what it records, and turn it off if nothing uses it.", Command: "cat " + dir + "/set_event " + dir + "/current_tracer; echo 0 >" + dir + "/events/enable; echo nop >" + dir + "/current_tracer"},
			},
		})
	}
	return found
}
