package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	throttledShare = 0.05
	// fewPeriods is one second of the usual period of 100 ms. A share of fewer periods is
	// not significant.
	fewPeriods = 10
)

// throttled finds containers that the kernel stops at their own CPU limit, and groups of containers
// that it stops at the limit of a slice or a pod. The finding about a container is a notice: the limit
// slows down only its own container, and may be intended.
func throttled() Rule {
	return Rule{
		Name:      "throttling",
		Signal:    "nr_throttled / nr_periods of cpu.stat",
		Threshold: "over 5 % of at least 10 periods. The limit of a group above two or more containers, such as a slice or a pod: a warning",
		Why:       "each time, all threads of the container stop for the rest of 100 ms. A few times are a burst; beyond that, the limit determines the container's latency. The limit of a slice stops all containers below it, also those without a limit of their own, and no figure of these containers shows it",
		Source:    "Documentation/scheduler/sched-bwc.rst; kubernetes#67577. The threshold is a judgement",
		Needs:     []string{fact.GroupsSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.GroupThrottled) {
				periods, _ := s.Group(fact.GroupPeriods, f.Subject.Cgroup)
				if f.Value <= throttledShare || periods < fewPeriods {
					continue
				}
				used, _ := s.Group(fact.GroupCPU, f.Subject.Cgroup)
				found = append(found, Finding{
					Severity: Notice,
					Title:    "a container is repeatedly stopped by its own CPU limit",
					Evidence: []Evidence{
						{"periods in which it was throttled", fmt.Sprintf("%s of %s", percent(f.Value), number(periods)), "under 5 %"},
						{"CPUs that the container used", fmt.Sprintf("%.2f", used), "what it needs"},
					},
					Culprit: f.Subject,
					Victims: []fact.Subject{f.Subject},
					Cures: []Cure{
						{What: "Raise its limit, or replace the limit by a CPU weight.", Command: "docker update --cpus N CONTAINER"},
						{What: "Let the program start as many threads as the container has CPUs, not as many as the host has.", Command: "GOMAXPROCS=N  # Go before 1.25; other runtimes have their own setting"},
					},
				})
			}
			return append(found, throttledAbove(s)...)
		},
	}
}

// throttledAbove finds groups above containers that their CPU limit stops.
func throttledAbove(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.AboveThrottled) {
		p := f.Subject.Device
		periods, _ := s.Device(fact.AbovePeriods, p)
		if f.Value <= throttledShare || periods < fewPeriods {
			continue
		}
		containers, _ := s.Device(fact.AboveContainers, p)
		found = append(found, Finding{
			Severity: Warning,
			Title:    "the CPU limit of the control group " + p + " repeatedly stops all containers below it",
			Evidence: []Evidence{
				{"periods in which it was throttled", fmt.Sprintf("%s of %s", percent(f.Value), number(periods)), "under 5 %"},
				{"containers below it", number(containers), "-"},
			},
			Cures: []Cure{{What: "Raise or remove the limit of the slice or the pod.", Command: "systemctl set-property SLICE CPUQuota="}},
		})
	}
	return found
}
