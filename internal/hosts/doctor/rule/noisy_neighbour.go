package rule

import (
	"fmt"
	"path"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	waitShare     = 0.20 // of the look
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
		Threshold: "a thread of a container that was not throttled waited for over 20 % of the time, the CPUs are over 90 % busy, and another group has over 30 % of them, twice as much as the victim, and more than the hypervisor, than all that is in no container (else that is named), and than all containers that came and went",
		Why:       "on busy CPUs everybody waits a little, and many threads a little each: a thread that waits a fifth of the time is what its users notice. Beside a compile job on all CPUs, which is healthy, others waited for up to 11 %. Who uses as much as the one blamed is no victim but another worker",
		Source:    "Documentation/scheduler/sched-stats.rst. The thresholds are judgements",
		Needs:     []string{fact.TasksSeen, fact.GroupsSeen, fact.GroupsCPU, fact.CPUBusy, fact.CPUSteal, fact.HostCPUs},
		Judge: func(s *fact.Set) []Finding {
			busy, _ := s.Host(fact.CPUBusy)
			cpus, _ := s.Host(fact.HostCPUs)
			steal, _ := s.Host(fact.CPUSteal)
			grouped, _ := s.Host(fact.GroupsCPU)
			hog, measured := largest(s.Of(fact.GroupCPU))
			if outside := (busy-steal)*cpus - grouped; outside > hog.Value { // whoever is in no group has most
				hog = fact.Fact{Value: outside, Subject: fact.Subject{Cgroup: "/"}}
			}
			// Groups that came and went have used what no other has.
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
			title := "containers wait for CPUs that another one has"
			if culprit.Cgroup == "/" {
				title = "containers wait for CPUs that processes have which are in no container"
			}
			return []Finding{{
				Severity: Warning,
				Title:    title,
				Evidence: []Evidence{
					{"a thread's longest wait for a CPU, of the time", percent(worst), "under 20 %"},
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

// largest is the group that uses most CPU, and what all use. What is in a group of a
// group counts for both there, and once here.
func largest(fs []fact.Fact) (most fact.Fact, all float64) {
	groups := make(map[string]bool, len(fs))
	for _, f := range fs {
		groups[f.Subject.Cgroup] = true
	}
	for i, f := range fs { // the largest first
		if i == 0 {
			most = f
		}
		if !below(groups, f.Subject.Cgroup) {
			all += f.Value
		}
	}
	return most, all
}

// below reports whether one of the groups is above the path.
func below(groups map[string]bool, p string) bool {
	for p != "/" {
		if p = path.Dir(p); groups[p] {
			return true
		}
	}
	return false
}
