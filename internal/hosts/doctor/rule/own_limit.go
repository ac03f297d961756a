package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	stalledShare = 0.05
	manyHits     = 100 // /s
	manyRefaults = 100 // /s
)

// ownLimit finds a container that thrashes at its own memory limit: it reclaims its pages
// and reads them again.
func ownLimit() Rule {
	return Rule{
		Name:      "own-limit",
		Signal:    "hits of the container's limit (memory.failcnt, or max and high of memory.events), its memory.pressure, refaults of memory.stat, and oom_kill of memory.events or memory.oom_control; kills in the kernel's log of the last ten minutes (/dev/kmsg)",
		Threshold: "the limit is hit, and the whole container is stalled for over 5 % of the time: on memory, or on the disk with over 100 refaults/s; without pressure files, over 100 hits/s and 100 refaults/s. Or the kernel killed a process at the limit; before the examination, a notice",
		Why:       "a program that reads files reaches its limit in normal operation; stalling on the limit, or reading the same pages repeatedly, is not normal. At the limit the kernel kills a process if it finds nothing to reclaim",
		Source:    "Documentation/accounting/psi.rst, admin-guide/cgroup-v2.rst. The thresholds are judgements",
		Needs:     []string{fact.GroupsSeen},
		Judge: func(s *fact.Set) []Finding {
			found := killed(s)
			for _, f := range s.Of(fact.GroupLimitHits) {
				group := f.Subject.Cgroup
				limit, limited := s.Group(fact.GroupLimit, group)
				if kills, _ := s.Group(fact.GroupOOMKills, group); f.Value <= 0 || !limited || kills > 0 {
					continue
				}
				stalled, pressure := s.Group(fact.GroupMemoryFull, group)
				refaults, _ := s.Group(fact.GroupRefaults, group)
				if io, ok := s.Group(fact.GroupIOFull, group); ok && refaults > manyRefaults {
					stalled = max(stalled, io) // the kernel accounts the wait for a refaulted page as I/O
				}
				if pressure && stalled <= stalledShare || !pressure && (f.Value < manyHits || refaults < manyRefaults) {
					continue
				}
				e := []Evidence{
					{"its limit was hit", perSecond(f.Value), "0/s"},
					{"limit", bytes(limit), "above its working set"},
					{"pages read again after they were reclaimed", perSecond(refaults), "a few/s"},
				}
				if pressure {
					e = append(e, Evidence{"stalled on pages, share of the time", percent(stalled), "under 5 %"})
				}
				title := "a container thrashes at its own memory limit"
				if refaults < manyRefaults {
					title = "a container waits at its own memory limit until pages are free"
				}
				found = append(found, Finding{
					Severity: Warning,
					Title:    title,
					Evidence: e,
					Culprit:  f.Subject,
					Victims:  []fact.Subject{f.Subject},
					Cures:    []Cure{{What: "Raise its limit, or make the program use less memory.", Command: "docker update --memory SIZE --memory-swap SIZE CONTAINER"}},
				})
			}
			return append(found, killedBefore(s)...)
		},
	}
}

// killed returns a finding for each container with processes that the kernel killed.
func killed(s *fact.Set) []Finding {
	var found []Finding
	for _, f := range s.Of(fact.GroupOOMKills) {
		limit, _ := s.Group(fact.GroupLimit, f.Subject.Cgroup)
		found = append(found, Finding{
			Severity: Warning,
			Title:    "the kernel kills processes of a container at its memory limit",
			Evidence: []Evidence{{"processes killed during the examination", number(f.Value), "0"}, {"limit", bytes(limit), "above what it needs"}},
			Culprit:  f.Subject,
			Victims:  []fact.Subject{f.Subject},
			Cures:    []Cure{{What: "Raise its limit, or make the program use less memory.", Command: "docker update --memory SIZE --memory-swap SIZE CONTAINER"}},
		})
	}
	return found
}

// killedBefore finds containers and programs whose processes the kernel killed in the minutes before. They
// may have ended with that.
func killedBefore(s *fact.Set) (found []Finding) {
	for _, k := range []struct {
		fact, title string
		cure        Cure
	}{
		{fact.OOMKilled, "the kernel has killed processes at a memory limit", Cure{What: "Raise the limit, or make the program use less memory.", Command: "docker update --memory SIZE --memory-swap SIZE CONTAINER"}},
		{fact.HostOOMKilled, "the kernel has killed processes because the host had no memory left", Cure{What: "Give each container a memory limit, and the host more memory or fewer containers."}},
	} {
		for _, f := range s.Of(k.fact) {
			if kills, _ := s.Group(fact.GroupOOMKills, f.Subject.Cgroup); kills > 0 {
				continue // it is a finding already
			}
			found = append(found, Finding{
				Severity: Notice, Title: k.title,
				Evidence: []Evidence{{"processes killed in the last ten minutes", number(f.Value), "0"}, {"time since the last", fmt.Sprintf("%.0f s", f.Over), "-"}},
				Culprit:  f.Subject,
				Cures:    []Cure{k.cure},
			})
		}
	}
	return found
}
