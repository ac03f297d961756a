package rule

import "holdfast/internal/doctor/fact"

const (
	manySyscalls     = 100_000
	syscallKernelCPU = 0.10
)

// syscallStorm is a container that calls the kernel at a rate that hurts.
func syscallStorm() Rule {
	return Rule{
		Name:      "syscall-storm",
		Signal:    "a burst of a histogram of system calls by container; those that only sleep are left out",
		Threshold: "over 100,000/s, or one call over 10 % of kernel time",
		Why:       "counting every call costs 0.2 to 0.8 µs each, so that it is done in bursts of seconds when something points there",
		Source:    "docs/doctor.md; a judgement",
		Needs:     []string{fact.Syscalls},
		Later:     "with the profiles: the burst itself",
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.Syscalls) {
				if f.Value < manySyscalls {
					continue
				}
				found = append(found, Finding{
					Severity: Warning,
					Title:    "a container calls the kernel very often",
					Evidence: []Evidence{{"system calls", perSecond(f.Value), "under 100,000/s"}},
					Culprit:  f.Subject,
					Cures:    []Cure{{What: "See which calls they are, for a second.", Command: "timeout 1 strace -f -c -p PID"}},
				})
			}
			return found
		},
	}
}
