package rule

import (
	"fmt"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	manyDying   = 2000     // groups
	dyingRatio  = 5        // dying for each living
	dyingCost   = 47 << 10 // bytes of kernel memory each, measured
	dyingShare  = 0.01     // of the host's memory
	slowReclaim = 1.0      // ms
)

// dyingCgroups is the leak of memory cgroups that are removed and cannot go,
// because pages are still charged to them.
func dyingCgroups() Rule {
	return Rule{
		Name:      "dying-cgroups",
		Signal:    "/proc/cgroups less the directories (v1), nr_dying_subsys_memory or nr_dying_descendants (v2); time of vmscan's memcg reclaims; under whom: v2 counts, on v1 an agent does (tracepoints cgroup_rmdir, cgroup_release), else pages (kpagecgroup)",
		Threshold: "over 2,000 and over 5 for each living one, or over 1 % of memory at 47 KiB each; critical where half of the reclaims take over 1 ms",
		Why:       "each holds 47 KiB of the kernel, and a reclaim at an ancestor walks all of them: 16 to 32 µs became 8 to 32 ms with 20,000. Without reclaim they hardly cost time, so the count alone is a warning",
		Source:    "measured on 6.18 and 6.1 (docs/doctor.md); Shopify's hosts with 50,000",
		Needs:     []string{fact.MemcgDying},
		Judge: func(s *fact.Set) []Finding {
			dying, _ := s.Host(fact.MemcgDying)
			living, _ := s.Host(fact.MemcgLiving)
			total, known := s.Host(fact.MemTotal)
			heavy := known && dying*dyingCost > dyingShare*total
			if !(dying > manyDying && dying > dyingRatio*living) && !heavy {
				return nil
			}
			f := Finding{
				Severity: Warning,
				Title:    fmt.Sprintf("%s memory cgroups are dead and cannot go", number(dying)),
				Evidence: []Evidence{
					{"dying memory cgroups", number(dying), fmt.Sprintf("a few hundred beside %s living", number(living))},
					{"kernel memory that they hold, about", bytes(dying * dyingCost), "under 1 % of memory"},
				},
				Cures: []Cure{
					{What: "Find what makes short-lived containers write files and give each the preStop line `holdfast doctor cure memcg --self --apply` (or, on v1, `sync; echo 0 > /sys/fs/cgroup/memory/memory.force_empty`), so that its pages go before it does."},
					squeeze(),
					{What: "Until then, take the host out of rotation.", Command: "holdfast node cordon"},
				},
			}
			if p50, ok := s.Host(fact.ReclaimP50); ok {
				f.Evidence = append(f.Evidence, Evidence{"a memory cgroup's reclaim, median", millis(p50), "16 to 32 µs"})
				if p50 > slowReclaim {
					f.Severity = Critical
				}
			} else {
				f.Evidence = append(f.Evidence, Evidence{"a memory cgroup's reclaim, median", "nobody reclaimed, or it could not be seen", "16 to 32 µs"})
			}
			under, e := whoseDead(s, dying)
			f.Evidence = append(f.Evidence, e...)
			if len(under) == 1 { // else nobody is blamed
				f.Culprit = under[0]
				f.Cures[1].Command = strings.Replace(f.Cures[1].Command, " --apply", " --cgroup "+groupPath(f.Culprit.Cgroup)+" --apply", 1)
			}
			return []Finding{f}
		},
	}
}

const (
	// mostDead is which share of the dead the one who is blamed has.
	mostDead = 0.5
	// fewLeft is how many are too few to blame somebody for.
	fewLeft = manyDying / 4
	// pageSize is what a dead group holds at least.
	pageSize = 4 << 10
	// shownParents bounds how many are listed.
	shownParents = 5
)

// whoseDead are the living groups under which the dead may be, and the evidence of
// it. v2 counts the dead under each. On v1 an agent has counted those that died while it
// looked: who has most of them goes on with it. Else the pages of the dead are known, of
// which each has one at least, so that who has fewer pages than groups are to be explained
// is out of question; but not who has a few dead with many pages.
func whoseDead(s *fact.Set, dying float64) (under []fact.Subject, e []Evidence) {
	if counted := s.Of(fact.MemcgUnder); len(counted) > 0 {
		for _, c := range counted[:min(len(counted), shownParents)] {
			if c.Value > mostDead*dying {
				under = append(under, c.Subject)
			}
			e = append(e, Evidence{"dead groups right under " + c.Subject.Cgroup, number(c.Value), "a few hundred"})
		}
		return under, e
	}
	if under, e := leaver(s); len(under) > 0 {
		return under, e
	}
	for _, p := range s.Of(fact.MemcgPins) {
		if p.Value > mostDead/2*dying*pageSize && len(under) < shownParents { // a sample is off by a little
			under = append(under, p.Subject)
			e = append(e, Evidence{"pages of dead groups under " + p.Subject.Cgroup + ", about", bytes(p.Value), "0 B"})
		}
	}
	return under, e
}

// leaver is under whom most of those are that have died while an agent looked.
func leaver(s *fact.Set) (under []fact.Subject, e []Evidence) {
	all, _ := s.Host(fact.MemcgLeft)
	sum := 0.0
	var some []fact.Fact
	for _, l := range s.Of(fact.MemcgLeft) {
		if !l.Subject.IsHost() {
			sum += l.Value
			some = append(some, l)
		}
	}
	for _, l := range some[:min(len(some), shownParents)] {
		if l.Value > mostDead*max(all, sum) && l.Value > fewLeft {
			under = append(under, l.Subject)
		}
		e = append(e, Evidence{"removed under " + l.Subject.Cgroup + " since the agent looks, and not gone", fmt.Sprintf("%s of %s", number(l.Value), number(max(all, sum))), "a few hundred"})
	}
	return under, e
}

// squeeze frees them without losing the page cache of the living: reclaim at the
// parent takes the pages of the dead first, if it wants few.
func squeeze() Cure {
	return Cure{
		What:    "To free those that are there, and keep the page cache of the living: small squeezes at the parent, which take the dead first.",
		Command: "holdfast doctor cure memcg --apply",
	}
}
