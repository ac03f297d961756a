package rule

import (
	"fmt"
	"path"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	waitShare     = 0.20 // share of the examination
	busyCPUs      = 0.90
	neighbourMin  = 0.30 // of all CPUs: a group with less is not a neighbour
	shownVictims  = 5
	victimMostCPU = 0.5 // of the neighbour's CPU time: a group that uses more is not a victim
)

// noisyNeighbour finds containers with threads that wait for CPUs that another container
// uses.
func noisyNeighbour() Rule {
	return Rule{
		Name:      "noisy-neighbour",
		Signal:    "run-queue delay of a container's threads (schedstat), and the CPU time of the other groups",
		Threshold: "a thread of a container that was not throttled waited for over 20 % of the time. The CPUs are over 90 % busy, and another group uses over 30 % of them. That group uses twice as much as the victim, more than the hypervisor, and more than all containers that came and went. If the processes in no container use more than that group, they are named instead",
		Why:       "on busy CPUs every thread waits a little. A thread that waits a fifth of the time is noticeable to its users. Next to a compile job on all CPUs, which is healthy, other threads waited for up to 11 %. A group that uses as much CPU as the named one is another worker and not a victim",
		Source:    "Documentation/scheduler/sched-stats.rst. The thresholds are judgements",
		Needs:     []string{fact.TasksSeen, fact.GroupsSeen, fact.GroupsCPU, fact.CPUBusy, fact.CPUSteal, fact.HostCPUs},
		Judge: func(s *fact.Set) []Finding {
			busy, _ := s.Host(fact.CPUBusy)
			cpus, _ := s.Host(fact.HostCPUs)
			steal, _ := s.Host(fact.CPUSteal)
			grouped, _ := s.Host(fact.GroupsCPU)
			hog, measured := largest(s.Of(fact.GroupCPU))
			if outside := (busy-steal)*cpus - grouped; outside > hog.Value { // the largest user is in no group
				hog = fact.Fact{Value: outside, Subject: fact.Subject{Cgroup: "/"}}
			}
			// Groups that came and went have used the CPU time that no measured group
			// accounts for.
			if fleeting := grouped - measured; busy < busyCPUs || hog.Value < neighbourMin*cpus || hog.Value < max(steal*cpus, fleeting) {
				return nil
			}
			var victims []fact.Subject
			worst := 0.0
			for _, w := range s.Of(fact.GroupLongest) {
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
			title := "containers wait for CPUs that another container uses"
			if culprit.Cgroup == "/" {
				title = "containers wait for CPUs that processes outside containers use"
			}
			return []Finding{{
				Severity: Warning,
				Title:    title,
				Evidence: []Evidence{
					{"longest wait of a thread for a CPU, share of the time", percent(worst), "under 20 %"},
					{"CPUs that the named group uses", fmt.Sprintf("%.1f of %.0f", hog.Value, cpus), "-"},
					{"containers that wait", number(float64(len(victims))), "0"},
				},
				Culprit: culprit,
				Victims: victims[:min(len(victims), shownVictims)],
				Cures: []Cure{
					{What: "Lower its CPU weight, or give it CPUs of its own.", Command: "docker update --cpu-shares 128 CONTAINER  # or --cpuset-cpus 0"},
					{What: "Accept no new sessions on this node until then.", Command: "holdfast node cordon"},
				},
			}}
		},
	}
}

// largest returns the group that uses most CPU, and the use of all groups. The use of a
// nested group counts for the group and for its parent; all counts it once.
func largest(fs []fact.Fact) (most fact.Fact, all float64) {
	groups := make(map[string]bool, len(fs))
	for _, f := range fs {
		groups[f.Subject.Cgroup] = true
	}
	for i, f := range fs { // sorted, largest first
		if i == 0 {
			most = f
		}
		if !below(groups, f.Subject.Cgroup) {
			all += f.Value
		}
	}
	return most, all
}

// below reports whether one of the groups is an ancestor of the path.
func below(groups map[string]bool, p string) bool {
	for p != "/" {
		if p = path.Dir(p); groups[p] {
			return true
		}
	}
	return false
}
