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
	diskLimit  = 0.90 // of a limit on a disk: beyond it, most requests wait for the limit
)

// throttled finds containers that the kernel stops at their own CPU limit, and groups of containers
// that it stops at the limit of a slice or a pod. The finding about a container is a notice: the limit
// slows down only its own container, and may be intended.
func throttled() Rule {
	return Rule{
		Name:      "throttling",
		Signal:    "nr_throttled / nr_periods of cpu.stat; the rate at which a container, or a group above containers, uses a disk, and its limits (io.max and io.stat, blkio.throttle)",
		Threshold: "over 5 % of at least 10 periods. The limit of a group above two or more containers, such as a slice or a pod: a warning. Over 90 % of a limit on a disk: a notice, and a warning if it is that of a group above containers",
		Why:       "each time, all threads of the container stop for the rest of 100 ms. A few times are a burst; beyond that, the limit determines the container's latency. The limit of a slice stops all containers below it, also those without a limit of their own, and no figure of these containers shows it. A limit on a disk makes requests wait while the disk is idle",
		Source:    "Documentation/scheduler/sched-bwc.rst, admin-guide/cgroup-v2.rst, admin-guide/cgroup-v1/blkio-controller.rst; kubernetes#67577. The threshold is a judgement",
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
			return append(append(found, throttledAbove(s)...), throttledDisks(s)...)
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

// throttledDisks finds containers, and groups above containers, whose limit on a disk makes their
// requests wait. The limit is a setting of the host, so no container is the culprit.
func throttledDisks(s *fact.Set) (found []Finding) {
	own := Finding{
		Severity: Notice, Title: "limits on disks make the requests of containers wait",
		Cures: []Cure{{What: "Raise or remove the limit.", Command: "docker inspect CONTAINER | grep -A4 BlkioDevice"}},
	}
	for _, f := range s.Of(fact.DiskLimitUsed) {
		e := Evidence{"rate, of the limit on a disk", percent(f.Value), "under 90 %"}
		switch above := f.Subject.Device; {
		case f.Value <= diskLimit:
		case above == "":
			own.Evidence, own.Victims = append(own.Evidence, e), append(own.Victims, f.Subject)
		default:
			found = append(found, Finding{
				Severity: Warning, Title: "the limit on a disk of the control group " + above + " makes all containers below it wait",
				Evidence: []Evidence{e},
				Cures:    []Cure{{What: "Raise or remove the limit of the slice or the pod.", Command: "cat /sys/fs/cgroup" + above + "/io.max"}},
			})
		}
	}
	if n := min(len(own.Victims), shownVictims); n > 0 {
		own.Evidence, own.Victims = own.Evidence[:1], own.Victims[:n]
		found = append(found, own)
	}
	return found
}
