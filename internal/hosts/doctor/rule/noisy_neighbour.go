package rule

import (
	"fmt"
	"path"
	"slices"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	waitShare     = 0.20 // share of the examination
	busyCPUs      = 0.90
	neighbourMin  = 0.30 // of all CPUs: a group with less is not a neighbour
	neighbourMost = 0.50 // of all CPUs: others wait for it by its priority, though the CPUs are not always busy
	shownVictims  = 5
	victimMostCPU = 0.5  // of the neighbour's CPU time: a group that uses more is not a victim
	crowdLeast    = 3    // containers that wait
	wantsLeast    = 0.10 // of all CPUs: a group with less takes none from others, however much it waits
	wantsMany     = 3    // groups that are named; more are a crowd
	alikeLeast    = 0.20 // of all CPUs: a container that is named beside one that uses more
	fullShare     = 0.15 // of the examination
	fullBursts    = 3
	fullOutside   = 0.30 // the same for a group outside containers: an engine is busy while it starts some
	fullMostly    = 0.50 // the same for all processes outside containers, of which only the mean is known
)

// noisyNeighbour finds containers with threads that wait for CPUs that another container
// uses, or that too many use, and a container that uses all of them though none waits yet.
func noisyNeighbour() Rule {
	return Rule{
		Name:      "noisy-neighbour",
		Signal:    "run-queue delay of a container's threads (schedstat), the CPU time of the other groups, and ten times a second whether all CPUs are in use",
		Threshold: "a thread of a container that was not throttled waited for over 20 % of the time. The CPUs are over 90 % busy, and another group uses over 30 % of them, or it uses over 50 % of all CPUs. That group uses twice as much as the victim, more than the hypervisor, and more than all containers that came and went. If the processes in no container use more than that group, they are named instead. Up to three groups are named of which each wants all CPUs, by what its threads use and wait for together, and which use over 30 % together. Threads that came and went count as having waited like those that began meanwhile. If no group uses over 30 % and three containers wait, there are too many of them. Without waits, a notice names a container that used over 30 % of the CPUs while they were over 95 % busy, for 15 % of the time, or three times for 250 ms. It also names up to two others that use over 20 % of the CPUs, and more than half as much. It names a control group outside containers that did so for 30 % of the time. If they were for half of the time, it also names all processes outside containers, if these used over 30 % on average",
		Why:       "on busy CPUs every thread waits a little. A thread that waits a fifth of the time is noticeable to its users. Next to a compile job on all CPUs, which is healthy, other threads waited for up to 11 %. A group that uses as much CPU as the named one is another worker and not a victim. The scheduler prefers threads that use little, so a container that takes all CPUs harms others only when they need much",
		Source:    "Documentation/scheduler/sched-stats.rst. The thresholds are judgements",
		Needs:     []string{fact.TasksSeen, fact.GroupsSeen, fact.GroupsCPU, fact.CPUBusy, fact.CPUSteal, fact.HostCPUs},
		Judge: func(s *fact.Set) []Finding {
			for _, judge := range []func(*fact.Set) []Finding{neighbour, crowd, saturates} {
				if found := judge(s); len(found) > 0 {
					return found
				}
			}
			return nil
		},
	}
}

// hog returns the group that uses most CPU time, "/" for the processes outside all groups, and
// the CPU time of groups that came and went. busy is the share of all CPUs that is in use.
func hog(s *fact.Set) (most fact.Fact, fleeting, busy float64) {
	busy, _ = s.Host(fact.CPUBusy)
	cpus, _ := s.Host(fact.HostCPUs)
	steal, _ := s.Host(fact.CPUSteal)
	grouped, _ := s.Host(fact.GroupsCPU)
	most, measured := largest(s.Of(fact.GroupCPU))
	if outside := (busy-steal)*cpus - grouped; outside > most.Value {
		most = fact.Fact{Value: outside, Subject: fact.Subject{Cgroup: "/"}}
	}
	// Groups that came and went have used the CPU time that no measured group accounts for.
	return most, grouped - measured, busy
}

// waiting returns the groups with a thread that waits, other than by, that use at most so much
// CPU time, and the longest wait.
func waiting(s *fact.Set, by string, most float64) (victims []fact.Subject, worst float64) {
	for _, w := range s.Of(fact.GroupLongest) {
		group := w.Subject.Cgroup
		used, measured := s.Group(fact.GroupCPU, group)
		stopped, _ := s.Group(fact.GroupThrottled, group)
		if w.Value <= waitShare || group == by || !measured || used > most || stopped > throttledShare {
			continue
		}
		victims = append(victims, w.Subject)
		worst = max(worst, w.Value)
	}
	return victims, worst
}

// neighbour finds containers that wait for CPUs that one group uses.
func neighbour(s *fact.Set) []Finding {
	cpus, _ := s.Host(fact.HostCPUs)
	steal, _ := s.Host(fact.CPUSteal)
	most, fleeting, busy := hog(s)
	if busy < busyCPUs && most.Value < neighbourMost*cpus || most.Value < neighbourMin*cpus || most.Value < max(steal*cpus, fleeting) {
		return nil
	}
	victims, worst := waiting(s, most.Subject.Cgroup, victimMostCPU*most.Value)
	if len(victims) == 0 {
		return nil
	}
	found := []Finding{takes(s, most, victims, worst)}
	for _, other := range demanding(s) {
		if other.Subject.Cgroup != most.Subject.Cgroup && other.Value > victimMostCPU*most.Value {
			found = append(found, takes(s, other, victims, worst))
		}
	}
	return found
}

// takes returns the finding of a group that uses CPUs for which others wait.
func takes(s *fact.Set, group fact.Fact, victims []fact.Subject, worst float64) Finding {
	cpus, _ := s.Host(fact.HostCPUs)
	culprit := busiestOf(s, group.Subject)
	title := "containers wait for CPUs that another container uses"
	if culprit.Cgroup == "/" {
		title = "containers wait for CPUs that processes outside containers use"
	}
	return Finding{
		Severity: Warning,
		Title:    title,
		Evidence: []Evidence{
			{"longest wait of a thread for a CPU, share of the time", percent(worst), "under 20 %"},
			{"CPUs that the named group uses", fmt.Sprintf("%.1f of %.0f", group.Value, cpus), "-"},
			{"containers that wait", number(float64(len(victims))), "0"},
		},
		Culprit: culprit,
		Victims: victims[:min(len(victims), shownVictims)],
		Cures:   lessCPU(),
	}
}

// demanding returns the groups of which each wants all CPUs: what its threads use, and what they
// wait for. It returns none if they are many, or use little together.
func demanding(s *fact.Set) (all []fact.Fact) {
	cpus, _ := s.Host(fact.HostCPUs)
	for _, f := range s.Of(fact.GroupCPU) { // sorted, largest first
		stopped, _ := s.Group(fact.GroupThrottled, f.Subject.Cgroup)
		if f.Value >= wantsLeast*cpus && f.Value+cpuWaits(s, f) >= cpus && stopped <= throttledShare {
			all = append(all, f)
		}
	}
	if len(all) > wantsMany || total(all) < neighbourMin*cpus {
		return nil
	}
	return all
}

// cpuWaits returns for how many CPUs the threads of a group wait. Of threads that came and went it is not
// known: they have waited like those that began during the examination and still run, for each
// second of CPU time.
func cpuWaits(s *fact.Set, group fact.Fact) float64 {
	known, _ := s.Group(fact.GroupWait, group.Subject.Cgroup)
	lasting, _ := s.Group(fact.GroupLasting, group.Subject.Cgroup)
	young, _ := s.Group(fact.GroupYoungWait, group.Subject.Cgroup)
	return known + young*max(0, group.Value-lasting)
}

// crowd finds containers that wait for CPUs of which no group uses much.
func crowd(s *fact.Set) []Finding {
	cpus, _ := s.Host(fact.HostCPUs)
	steal, _ := s.Host(fact.CPUSteal)
	most, fleeting, busy := hog(s)
	if busy < busyCPUs || most.Value >= neighbourMin*cpus || steal > neighbourMin || fleeting >= neighbourMin*cpus {
		return nil
	}
	victims, worst := waiting(s, "", cpus)
	if found := fewDemanding(s, victims, worst); len(found) > 0 {
		return found
	}
	if len(victims) < crowdLeast {
		return nil
	}
	return []Finding{{
		Severity: Warning,
		Title:    "containers wait for CPUs, and none of them uses much: there are too many",
		Evidence: []Evidence{
			{"longest wait of a thread for a CPU, share of the time", percent(worst), "under 20 %"},
			{"containers that wait", number(float64(len(victims))), "0"},
			{"CPUs that the largest user has", fmt.Sprintf("%.1f of %.0f", most.Value, cpus), "-"},
		},
		Victims: victims[:min(len(victims), shownVictims)],
		Cures: []Cure{
			{What: "Accept no new sessions on this node until then.", Command: "holdfast node cordon"},
			{What: "Run fewer containers on this host, or give it more CPUs."},
		},
	}}
}

// fewDemanding finds the groups that want all CPUs while others wait, which may be among the waiting
// groups given.
func fewDemanding(s *fact.Set, waiting []fact.Subject, worst float64) (found []Finding) {
	takers := demanding(s)
	victims := slices.DeleteFunc(slices.Clone(waiting), func(v fact.Subject) bool {
		return slices.ContainsFunc(takers, func(t fact.Fact) bool { return t.Subject.Cgroup == v.Cgroup })
	})
	if len(victims) == 0 {
		return nil
	}
	for _, t := range takers {
		found = append(found, takes(s, t, victims, worst))
	}
	return found
}

// saturates finds containers, or processes outside containers, that use all CPUs, all the time or in bursts. No container waits
// for over a fifth of the time.
func saturates(s *fact.Set) []Finding {
	cpus, _ := s.Host(fact.HostCPUs)
	for _, f := range s.Of(fact.GroupCPUFull) { // sorted, largest first
		bursts, _ := s.Group(fact.GroupCPUBursts, f.Subject.Cgroup)
		contained := fact.ContainerID(f.Subject.Cgroup) != ""
		if f.Value < fullOutside && (!contained || f.Value < fullShare && bursts < fullBursts) {
			continue
		}
		used, _ := s.Group(fact.GroupCPU, f.Subject.Cgroup)
		found := []Finding{fills(s, fact.Fact{Value: used, Subject: f.Subject}, f.Value, bursts)}
		if contained {
			for _, other := range alike(s, f.Subject.Cgroup, max(victimMostCPU*used, alikeLeast*cpus)) {
				found = append(found, fills(s, other, f.Value, bursts))
			}
		}
		return found[:min(len(found), wantsMany)]
	}
	most, fleeting, _ := hog(s) // one that is no container
	if full, _ := s.Host(fact.CPUFull); full >= fullMostly && most.Value >= max(neighbourMin*cpus, fleeting) {
		return []Finding{fills(s, most, full, 0)}
	}
	return nil
}

// alike returns the containers beside a group that use more CPU time than least and are not throttled.
func alike(s *fact.Set, group string, least float64) (all []fact.Fact) {
	seen := []string{fact.UnitGroup(group)}
	for _, f := range s.Of(fact.GroupCPU) { // sorted, largest first
		f.Subject.Cgroup = fact.UnitGroup(f.Subject.Cgroup)
		stopped, _ := s.Group(fact.GroupThrottled, f.Subject.Cgroup)
		if fact.ContainerID(f.Subject.Cgroup) != "" && f.Value > least && stopped <= throttledShare && !slices.Contains(seen, f.Subject.Cgroup) {
			all, seen = append(all, f), append(seen, f.Subject.Cgroup)
		}
	}
	return all
}

// fills returns the finding of a group that has used over 30 % of the CPUs while all were in use, for
// that share of the time and in so many bursts.
func fills(s *fact.Set, group fact.Fact, full, bursts float64) Finding {
	cpus, _ := s.Host(fact.HostCPUs)
	title := "a container uses all CPUs that are left; others wait as soon as they need much"
	if fact.ContainerID(group.Subject.Cgroup) == "" {
		title = "processes outside containers use all CPUs that are left; containers wait as soon as they need much"
	}
	return Finding{
		Severity: Notice,
		Title:    title,
		Evidence: []Evidence{
			{"time in which no CPU was idle, and a container that is named used over 30 %", percent(full), "under 15 %"},
			{"times for which that lasted 250 ms or more", number(bursts), "under 3"},
			{"CPUs that it uses, on average", fmt.Sprintf("%.1f of %.0f", group.Value, cpus), "-"},
		},
		Culprit: busiestOf(s, group.Subject),
		Cures:   lessCPU(),
	}
}

// busiestOf returns the process of a group that uses most CPU time, or the group.
func busiestOf(s *fact.Set, group fact.Subject) fact.Subject {
	for _, p := range s.Of(fact.ProcessCPU) {
		if p.Subject.Cgroup == group.Cgroup {
			return p.Subject
		}
	}
	return group
}

func lessCPU() []Cure {
	return []Cure{
		{What: "Lower its CPU weight, or give it CPUs of its own.", Command: "docker update --cpu-shares 128 CONTAINER  # or --cpuset-cpus 0"},
		{What: "Accept no new sessions on this node until then.", Command: "holdfast node cordon"},
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
