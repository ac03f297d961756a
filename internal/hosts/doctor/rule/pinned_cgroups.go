package rule

import (
	"cmp"
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

// fewPinned is the amount of locked pages, in bytes, below which a process is ignored.
const fewPinned = 1 << 20

// pinnedCgroups finds dying groups that no reclaim frees, because a process has locked
// their pages.
func pinnedCgroups() Rule {
	return Rule{
		Name:      "pinned-cgroups",
		Signal:    "pages that a process locks (smaps) and that are charged to a group without processes (pagemap, kpagecgroup)",
		Threshold: "over 1 MiB of such pages, and over 200 dying groups",
		Why:       "locked pages are never reclaimed: every cure frees 0 % of the dying groups that they hold",
		Source:    "measured (docs/doctor.md); Documentation/mm/unevictable-lru.rst",
		Needs:     []string{fact.MemcgDying, fact.PinnedPages},
		Judge: func(s *fact.Set) []Finding {
			dying, _ := s.Host(fact.MemcgDying)
			const some = manyDying / 10
			if dying <= some {
				return nil
			}
			var found []Finding
			for _, f := range s.Of(fact.PinnedPages) {
				if f.Subject.IsHost() || f.Value < fewPinned {
					continue
				}
				found = append(found, Finding{
					Severity: Warning,
					Title:    fmt.Sprintf("process %d (%s) holds dying memory cgroups with locked pages", f.Subject.Pid, f.Subject.Command),
					Evidence: []Evidence{
						{"locked, and charged to groups without processes", bytes(f.Value), "0 B"},
						{"file", cmp.Or(f.Subject.Device, "unknown"), "-"},
						{"dying memory cgroups", number(dying), "a few hundred"},
					},
					Culprit: f.Subject,
					Cures: []Cure{
						{What: "Restart that process (or make it call munlock); nothing else frees these groups."},
						{What: "If that is not possible, cordon the host.", Command: "holdfast node cordon"},
					},
				})
			}
			return found
		},
	}
}
