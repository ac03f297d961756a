package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	systemShare = 0.40
	systemTimes = 2 // multiple of the value on a healthy host
	systemCPUs  = 0.2
)

// kernelTime finds a container that spends most of its CPU time in the kernel.
func kernelTime() Rule {
	return Rule{
		Name:      "kernel-time",
		Signal:    "system / usage of a container's CPU time, compared with a baseline",
		Threshold: "over 40 %, twice the baseline, and over 0.2 CPUs",
		Why:       "the normal share of kernel time depends on the workload, so the check needs a healthy host to compare with",
		Source:    "docs/doctor.md; a judgement",
		Needs:     []string{fact.GroupsSeen, fact.BaseSystem},
		Judge: func(s *fact.Set) []Finding {
			base, _ := s.Host(fact.BaseSystem)
			var found []Finding
			for _, f := range s.Of(fact.GroupSystem) {
				used, _ := s.Group(fact.GroupCPU, f.Subject.Cgroup)
				if f.Value <= systemShare || f.Value < systemTimes*base || used < systemCPUs {
					continue
				}
				found = append(found, Finding{
					Severity: Warning,
					Title:    "a container spends most of its time in the kernel",
					Evidence: []Evidence{{"share of its CPU time in the kernel", percent(f.Value), percent(base)}},
					Culprit:  f.Subject,
					Cures:    []Cure{{What: "Record where in the kernel the time is spent, and compare with a healthy host.", Command: "holdfast doctor record -o bad.pb.gz"}},
				})
			}
			return found
		},
	}
}
