package rule

import (
	"slices"

	"holdfast/internal/hosts/doctor/fact"
)

// harmed returns groups that suffer while a group acts: they wait for CPUs for over a fifth of
// the time, or for disks for over two fifths, and not because of their own limit.
func harmed(s *fact.Set, by string) []fact.Subject {
	return victims(s, by, append(starved(s), blocked(s)...))
}

// starved returns the facts of groups that wait for CPUs for over a fifth of the time.
func starved(s *fact.Set) []fact.Fact {
	if busy, _ := s.Host(fact.CPUBusy); busy <= busyCPUs {
		return nil
	}
	return slices.DeleteFunc(s.Of(fact.GroupLongest), func(f fact.Fact) bool { return f.Value <= waitShare })
}

// blocked returns the facts of groups that wait for disks for over two fifths of the time.
func blocked(s *fact.Set) []fact.Fact {
	return slices.DeleteFunc(s.Of(fact.GroupIOFull), func(f fact.Fact) bool { return f.Value <= flushBusy })
}

// victims returns the groups of facts about waits, other than the one that acts and those that stop
// at their own limit.
func victims(s *fact.Set, by string, waits []fact.Fact) []fact.Subject {
	var all []fact.Subject
	for _, w := range waits {
		group := w.Subject.Cgroup
		stopped, _ := s.Group(fact.GroupThrottled, group)
		same := func(v fact.Subject) bool { return v.Cgroup == group }
		if group != by && stopped <= throttledShare && !slices.ContainsFunc(all, same) {
			all = append(all, w.Subject)
		}
	}
	return all[:min(len(all), shownVictims)]
}

// byHarm is the severity of an act that slows down its own container, and others if there are
// victims.
func byHarm(victims []fact.Subject) Severity {
	if len(victims) == 0 {
		return Notice
	}
	return Warning
}

func severityOf(warning bool) Severity {
	if warning {
		return Warning
	}
	return Notice
}

// total sums the values of facts.
func total(fs []fact.Fact) (sum float64) {
	for _, f := range fs {
		sum += f.Value
	}
	return sum
}
