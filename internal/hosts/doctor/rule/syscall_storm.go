package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	manySyscalls = 100_000
	// syscallCPUs is the CPU use from which the calls cost enough to be reported.
	syscallCPUs = 0.2
)

// syscallStorm finds a container that makes so many system calls that it slows down the
// host.
func syscallStorm() Rule {
	return Rule{
		Name:      "syscall-storm",
		Signal:    "system calls by container and process, counted for two seconds if the kernel uses over 0.2 CPUs (sys_enter)",
		Threshold: "over 100,000/s, and over 0.2 CPUs of the container's time in the kernel",
		Why:       "each call costs 0.1 to 1 µs before it does any work, and other containers share the CPUs. A single kind of call with most of the kernel's time is not a sign of trouble: every busy host has one",
		Source:    "docs/doctor.md; a judgement",
		Needs:     []string{fact.CallsSeen, fact.GroupsSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.Calls) {
				used, _ := s.Group(fact.GroupCPU, f.Subject.Cgroup)
				system, _ := s.Group(fact.GroupSystem, f.Subject.Cgroup)
				if f.Value <= manySyscalls || used*system <= syscallCPUs {
					continue
				}
				e := []Evidence{
					{"system calls", perSecond(f.Value), "under 100,000/s"},
					{"CPUs that the container uses in the kernel", fmt.Sprintf("%.2f", used*system), "-"},
				}
				culprit := f.Subject
				for _, c := range s.Of(fact.CallsBy) {
					if c.Subject.Cgroup != f.Subject.Cgroup {
						continue
					}
					if len(e) == 2 {
						culprit = c.Subject
						culprit.Device = "" // the call is part of the evidence
					}
					e = append(e, Evidence{c.Subject.Device + " by " + c.Subject.Command, perSecond(c.Value), "-"})
				}
				found = append(found, Finding{
					Severity: Warning,
					Title:    "a container makes very many system calls",
					Evidence: e,
					Culprit:  culprit,
					Cures:    []Cure{{What: "Record where in the program the calls come from.", Command: "holdfast doctor record -o calls.pb.gz --container CONTAINER"}},
				})
			}
			return found
		},
	}
}
