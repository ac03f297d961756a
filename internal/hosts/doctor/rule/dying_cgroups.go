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

// dyingCgroups finds a leak of memory cgroups: groups that are removed but not released,
// because pages are still charged to them.
func dyingCgroups() Rule {
	return Rule{
		Name:      "dying-cgroups",
		Signal:    "/proc/cgroups minus the directories (v1), nr_dying_subsys_memory or nr_dying_descendants (v2); duration of vmscan's memcg reclaims; growth: groups removed minus groups released (tracepoints cgroup_rmdir, cgroup_release). The parent: counted by v2; on v1 counted by an agent (tracepoints cgroup_rmdir, cgroup_release), or else by pages (kpagecgroup)",
		Threshold: "over 2,000 dying groups and over 5 for each living one, or over 1 % of memory at 47 KiB each; critical if half of the reclaims take over 1 ms",
		Why:       "each group holds 47 KiB of kernel memory, and a reclaim at an ancestor walks all of them. With 20,000 groups a reclaim took 8 to 32 ms instead of 16 to 32 µs. Without reclaim they cost almost no time, so the count alone is a warning",
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
			p50, timed := s.Host(fact.ReclaimP50)
			reclaim := "no reclaim, or not observable"
			if timed {
				reclaim = millis(p50)
			}
			f := Finding{
				Severity: severity(p50 > slowReclaim),
				Title:    fmt.Sprintf("%s memory cgroups are dying and cannot be released", number(dying)),
				Evidence: []Evidence{
					{"dying memory cgroups", number(dying), fmt.Sprintf("a few hundred with %s living", number(living))},
					{"kernel memory that they hold (estimate)", bytes(dying * dyingCost), "under 1 % of memory"},
					{"reclaim of a memory cgroup, median", reclaim, "16 to 32 µs"},
				},
				Cures: []Cure{
					{What: "Find the short-lived containers that write files. Give each the preStop command `holdfast doctor cure memcg --self --apply` (or, on v1, `sync; echo 0 > /sys/fs/cgroup/memory/memory.force_empty`), so that its pages are freed before its group is removed."},
					squeeze(),
					{What: "Until then, cordon the host.", Command: "holdfast node cordon"},
				},
			}
			if e, cure, ok := growth(s); ok {
				f.Evidence = append(f.Evidence, e)
				f.Cures = append(f.Cures, cure)
			}
			under, e := dyingParents(s, dying)
			f.Evidence = append(f.Evidence, e...)
			if len(under) == 1 { // otherwise no group is named
				f.Culprit = under[0]
				f.Cures[1].Command = strings.Replace(f.Cures[1].Command, " --apply", " --cgroup "+groupPath(f.Culprit.Cgroup)+" --apply", 1)
			}
			return []Finding{f}
		},
	}
}

// fewPerHour is the growth of the dying groups below which no workload is advised.
const fewPerHour = 60

// growth returns by how many the dying groups grow in an hour, in all hierarchies, and advice
// for the workload that removes them. Hierarchies of v1 without memory release theirs at once.
func growth(s *fact.Set) (Evidence, Cure, bool) {
	removed, ok := s.Host(fact.GroupsRemoved)
	released, known := s.Host(fact.GroupsReleased)
	grows := (removed - released) * 3600
	if !ok || !known || grows < fewPerHour {
		return Evidence{}, Cure{}, false
	}
	return Evidence{"control groups removed and not released", number(grows) + " an hour", "0 an hour"},
		Cure{What: fmt.Sprintf("If a pool of short-lived containers leaves these %s groups an hour, run several of its tasks in one container. A group stays if its pages are of files that outlive the container: those of volumes, of the image, or of a shared tmpfs. Files that are deleted with the container hold no group.", number(grows))}, true
}

const (
	// mostDead is the share of the dying groups that a parent needs to be named.
	mostDead = 0.5
	// fewLeft is the number of groups up to which no parent is named.
	fewLeft = manyDying / 4
	// pageSize is the least memory that a dying group holds.
	pageSize = 4 << 10
	// shownParents bounds the parents in the evidence.
	shownParents = 5
)

// dyingParents returns the living groups that the dying ones may be below, and the
// evidence. cgroup v2 counts the dying groups below each group. On v1 an agent counts the
// groups that are removed while it runs; the parent with most of them is taken to be the
// cause. Without these counts, the pages of the dying groups are known. Each dying group
// holds at least one page, so a parent with fewer pages than dying groups is excluded. A
// parent with few dying groups that hold many pages cannot be excluded.
func dyingParents(s *fact.Set, dying float64) (under []fact.Subject, e []Evidence) {
	if counted := s.Of(fact.MemcgUnder); len(counted) > 0 {
		for _, c := range counted[:min(len(counted), shownParents)] {
			if c.Value > mostDead*dying {
				under = append(under, c.Subject)
			}
			e = append(e, Evidence{"dying groups directly below " + c.Subject.Cgroup, number(c.Value), "a few hundred"})
		}
		return under, e
	}
	if under, e := removedParents(s); len(under) > 0 {
		return under, e
	}
	for _, p := range s.Of(fact.MemcgPins) {
		if p.Value > mostDead/2*dying*pageSize && len(under) < shownParents { // the sample is inexact
			under = append(under, p.Subject)
			e = append(e, Evidence{"pages of dying groups below " + p.Subject.Cgroup + " (estimate)", bytes(p.Value), "0 B"})
		}
	}
	return under, e
}

// removedParents returns the parents that lost most of the groups that an agent saw
// removed and not released.
func removedParents(s *fact.Set) (under []fact.Subject, e []Evidence) {
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
		e = append(e, Evidence{"removed below " + l.Subject.Cgroup + " since the agent's start, not released", fmt.Sprintf("%s of %s", number(l.Value), number(max(all, sum))), "a few hundred"})
	}
	return under, e
}

// squeeze reclaims the pages of dying groups and keeps the page cache of living ones: a
// small reclaim request at the parent takes the pages of dying groups first.
func squeeze() Cure {
	return Cure{
		What:    "Free the existing ones and keep the page cache of living groups: small reclaims at the parent take the pages of dying groups first.",
		Command: "holdfast doctor cure memcg --apply",
	}
}
