package rule

import (
	"fmt"

	"holdfast/internal/doctor/fact"
)

const (
	waitShare     = 0.10 // of the look
	busyCPUs      = 0.90
	neighbourMin  = 0.30 // of all CPUs: less is no hog
	shownVictims  = 5
	victimMostCPU = 0.5 // of what the neighbour has: who takes as much is no victim
)

// noisyNeighbour is a container whose threads wait for CPUs that another has.
func noisyNeighbour() Rule {
	return Rule{
		Name:      "noisy-neighbour",
		Signal:    "run-queue delay of a container's threads (schedstat), beside the CPU time of the others",
		Threshold: "a container that was not throttled waited for over 10 % of the time, the CPUs are over 90 % busy, and another group has over 30 % of them and twice as much as the victim",
		Why:       "on busy CPUs everybody waits a little; a tenth of the time is what its users notice. Who uses as much as the one blamed is no victim but another worker",
		Source:    "Documentation/scheduler/sched-stats.rst. The thresholds are judgements",
		Needs:     []string{fact.TasksSeen, fact.GroupsSeen, fact.CPUBusy, fact.HostCPUs},
		Later:     "with the profiles: who ran instead, by sched_switch",
		Judge: func(s *fact.Set) []Finding {
			busy, _ := s.Host(fact.CPUBusy)
			cpus, _ := s.Host(fact.HostCPUs)
			hogs := s.Of(fact.GroupCPU)
			if busy < busyCPUs || len(hogs) == 0 || hogs[0].Value < neighbourMin*cpus {
				return nil
			}
			hog := hogs[0]
			var victims []fact.Subject
			worst := 0.0
			for _, w := range s.Of(fact.GroupWait) {
				group := w.Subject.Cgroup
				used, measured := s.Group(fact.GroupCPU, group)
				stopped, _ := s.Group(fact.GroupThrottled, group)
				if w.Value <= waitShare || group == hog.Subject.Cgroup || !measured || used > victimMostCPU*hog.Value || stopped > throttledShare {
					continue
				}
				victims = append(victims, w.Subject)
				worst = max(worst, w.Value)
			}
			if len(victims) == 0 {
				return nil
			}
			culprit := hog.Subject
			for _, p := range s.Of(fact.ProcessCPU) {
				if p.Subject.Cgroup == culprit.Cgroup {
					culprit = p.Subject
					break
				}
			}
			return []Finding{{
				Severity: Warning,
				Title:    "containers wait for CPUs that another one has",
				Evidence: []Evidence{
					{"longest wait for a CPU, of the time", percent(worst), "under 10 %"},
					{"CPUs that the one named uses", fmt.Sprintf("%.1f of %.0f", hog.Value, cpus), "-"},
					{"containers that wait", number(float64(len(victims))), "0"},
				},
				Culprit: culprit,
				Victims: victims[:min(len(victims), shownVictims)],
				Cures: []Cure{
					{What: "Give it less weight, or CPUs of its own.", Command: "docker update --cpu-shares 128 CONTAINER  # or --cpuset-cpus 0"},
					{What: "Take no new sessions here until it is over.", Command: "holdfast node cordon"},
				},
			}}
		},
	}
}
