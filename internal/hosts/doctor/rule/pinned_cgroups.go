package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

// fewPinned is under which locked pages are no reason for anything.
const fewPinned = 1 << 20

// pinnedCgroups are dead groups that no reclaim frees, because somebody has locked
// their pages.
func pinnedCgroups() Rule {
	return Rule{
		Name:      "pinned-cgroups",
		Signal:    "pages that a process locks (smaps), by the group that they are charged to (pagemap, kpagecgroup): one in which nobody is",
		Threshold: "over 1 MiB of them, beside over 200 dying groups",
		Why:       "locked pages are never reclaimed: of the dead groups that they hold every cure frees 0 %",
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
					Title:    fmt.Sprintf("process %d (%s) holds dead memory cgroups by pages that it has locked", f.Subject.Pid, f.Subject.Command),
					Evidence: []Evidence{
						{"locked, and charged to groups without processes", bytes(f.Value), "0 B"},
						{"file", orUnknown(f.Subject.Device), "-"},
						{"dying memory cgroups", number(dying), "a few hundred"},
					},
					Culprit: f.Subject,
					Cures: []Cure{
						{What: "Restart that process (or have it call munlock): nothing else frees these groups."},
						{What: "If that cannot be, take the host out of rotation.", Command: "holdfast node cordon"},
					},
				})
			}
			return found
		},
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
