package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	systemShare = 0.40
	systemTimes = 2 // multiple of the value on a healthy host
	systemCPUs  = 0.2
	// Without a baseline.
	kernelShare = 0.60
	kernelCPUs  = 0.3 // in the kernel
)

// kernelTime finds a container that spends most of its CPU time in the kernel.
func kernelTime() Rule {
	return Rule{
		Name:      "kernel-time",
		Signal:    "system / usage of a container's CPU time, compared with a baseline if there is one; its most frequent system calls",
		Threshold: "over 40 %, twice the baseline, and over 0.2 CPUs; without a baseline over 60 %, and over 0.3 CPUs in the kernel. A warning if other containers wait for CPUs or disks",
		Why:       "the normal share of kernel time depends on the workload, so the check is best with a healthy host to compare with. A proxy may spend most of its time in the kernel: without victims it is only a notice",
		Source:    "docs/doctor.md; a judgement",
		Needs:     []string{fact.GroupsSeen},
		Judge: func(s *fact.Set) []Finding {
			base, known := s.Host(fact.BaseSystem)
			usual := "under 60 %"
			if known {
				usual = percent(base)
			}
			var found []Finding
			for _, f := range s.Of(fact.GroupSystem) {
				used, _ := s.Group(fact.GroupCPU, f.Subject.Cgroup)
				if known && (f.Value <= systemShare || f.Value < systemTimes*base || used < systemCPUs) || !known && (f.Value <= kernelShare || used*f.Value <= kernelCPUs) {
					continue
				}
				e := []Evidence{{"share of its CPU time in the kernel", percent(f.Value), usual}, {"CPUs that it uses in the kernel", fmt.Sprintf("%.2f", used*f.Value), "-"}}
				calls, culprit := mostCalls(s, f.Subject)
				victims := harmed(s, f.Subject.Cgroup)
				found = append(found, Finding{
					Severity: byHarm(victims),
					Title:    "a container spends most of its time in the kernel",
					Evidence: append(e, calls...),
					Culprit:  culprit,
					Victims:  victims,
					Cures:    []Cure{{What: "Record where in the kernel the time is spent, and compare with a healthy host.", Command: "holdfast doctor record -o bad.pb.gz"}},
				})
			}
			return found
		},
	}
}
