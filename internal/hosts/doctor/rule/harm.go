package rule

import (
	"slices"

	"holdfast/internal/hosts/doctor/fact"
)

// harmed returns groups that suffer while a group acts: they wait for CPUs for over a fifth of
// the time, or for disks for over two fifths, and not because of their own limit.
func harmed(s *fact.Set, by string) []fact.Subject {
	var victims []fact.Subject
	busy, _ := s.Host(fact.CPUBusy)
	suffers := func(w fact.Fact) {
		group := w.Subject.Cgroup
		stopped, _ := s.Group(fact.GroupThrottled, group)
		same := func(v fact.Subject) bool { return v.Cgroup == group }
		if group != by && stopped <= throttledShare && !slices.ContainsFunc(victims, same) {
			victims = append(victims, w.Subject)
		}
	}
	for _, w := range s.Of(fact.GroupLongest) {
		if w.Value > waitShare && busy > busyCPUs {
			suffers(w)
		}
	}
	for _, w := range s.Of(fact.GroupIOFull) {
		if w.Value > flushBusy {
			suffers(w)
		}
	}
	return victims[:min(len(victims), shownVictims)]
}

// byHarm is the severity of an act that slows down its own container, and others if there are
// victims.
func byHarm(victims []fact.Subject) Severity {
	if len(victims) == 0 {
		return Notice
	}
	return Warning
}
