package rule

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

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
		Threshold: "over 100,000/s, and over 0.2 CPUs of the container's time in the kernel; or a call that acts on the whole host, over its own rate: sync 5/s, unshare 50/s, mount 200/s, membarrier 100/s, fork 500/s, sched_setaffinity 1,000/s, rename 2,000/s, mprotect, munmap and madvise 10,000/s (fact/reach.go). A warning if other containers wait for CPUs or disks",
		Why:       "each call costs 0.1 to 1 µs before it does any work, and other containers share the CPUs. Some calls interrupt other CPUs, wait for all of them, or hold a lock of the whole host, so a few are as bad as very many others",
		Source:    "docs/doctor.md; a judgement",
		Needs:     []string{fact.CallsSeen, fact.GroupsSeen},
		Judge: func(s *fact.Set) []Finding {
			found := reaching(s)
			named := len(found)
			for _, f := range s.Of(fact.Calls) {
				if slices.ContainsFunc(found[:named], func(x Finding) bool { return x.Culprit.Cgroup == f.Subject.Cgroup }) {
					continue
				}
				used, _ := s.Group(fact.GroupCPU, f.Subject.Cgroup)
				system, _ := s.Group(fact.GroupSystem, f.Subject.Cgroup)
				if f.Value <= manySyscalls || used*system <= syscallCPUs {
					continue
				}
				e := []Evidence{
					{"system calls", perSecond(f.Value), "under 100,000/s"},
					{"CPUs that the container uses in the kernel", fmt.Sprintf("%.2f", used*system), "-"},
				}
				calls, culprit := mostCalls(s, f.Subject)
				found = append(found, callsFinding(s, "a container makes very many system calls", append(e, calls...), culprit))
			}
			return found
		},
	}
}

// reaching returns a finding for each group that makes a call which acts on the whole host, by
// the call that exceeds its rate most.
func reaching(s *fact.Set) []Finding {
	over := s.Of(fact.CallsReach)
	excess := func(f fact.Fact) float64 {
		r, ok := fact.ReachOf(f.Subject.Device)
		if !ok || r.Rate <= 0 {
			return 0
		}
		return f.Value / r.Rate
	}
	sort.SliceStable(over, func(i, j int) bool { return cmp.Less(excess(over[j]), excess(over[i])) })
	var found []Finding
	for _, f := range over {
		group := f.Subject.Cgroup
		if excess(f) <= 1 || slices.ContainsFunc(found, func(x Finding) bool { return x.Culprit.Cgroup == group }) {
			continue
		}
		r, _ := fact.ReachOf(f.Subject.Device)
		calls, culprit := mostCalls(s, fact.Subject{Cgroup: group})
		e := append([]Evidence{{f.Subject.Device + ", which " + r.Does, perSecond(f.Value), "under " + perSecond(r.Rate)}}, calls...)
		found = append(found, callsFinding(s, "a container makes very many calls of "+f.Subject.Device+", which acts on the whole host", e, culprit))
	}
	return found
}

// mostCalls returns a group's most frequent calls as evidence, and the process that makes them.
func mostCalls(s *fact.Set, culprit fact.Subject) (e []Evidence, by fact.Subject) {
	for _, c := range s.Of(fact.CallsBy) {
		if c.Subject.Cgroup != culprit.Cgroup {
			continue
		}
		if len(e) == 0 {
			culprit = c.Subject
			culprit.Device = "" // the call is part of the evidence
		}
		e = append(e, Evidence{c.Subject.Device + " by " + c.Subject.Command, perSecond(c.Value), "-"})
	}
	return e, culprit
}

func callsFinding(s *fact.Set, title string, e []Evidence, culprit fact.Subject) Finding {
	victims := harmed(s, culprit.Cgroup)
	return Finding{
		Severity: byHarm(victims),
		Title:    title,
		Evidence: e,
		Culprit:  culprit,
		Victims:  victims,
		Cures:    []Cure{{What: "Record where in the program the calls come from.", Command: "holdfast doctor record -o calls.pb.gz --container CONTAINER"}},
	}
}
