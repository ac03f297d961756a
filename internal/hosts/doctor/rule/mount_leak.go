package rule

import "holdfast/internal/hosts/doctor/fact"

const manyMounts = 5000

// mountLeak finds mounts that are never unmounted.
func mountLeak() Rule {
	return Rule{
		Name:      "mount-leak",
		Signal:    "lines of /proc/1/mountinfo, and of the mountinfo of each other mount namespace",
		Threshold: "over 5,000",
		Why:       "each new mount namespace copies all mounts, and systemd reads all of them at each change; a container has about five",
		Source:    "Documentation/filesystems/sharedsubtree.rst. The threshold is a judgement",
		Needs:     []string{fact.HostMounts},
		Judge: func(s *fact.Set) []Finding {
			n, _ := s.Host(fact.HostMounts)
			title, culprit := "the host has very many mounts", fact.Subject{}
			if most, in := worst(s.Of(fact.Mounts)); n <= manyMounts && in > manyMounts {
				n, title, culprit = in, "a container has very many mounts", most
			}
			if n <= manyMounts {
				return nil
			}
			return []Finding{{
				Severity: Warning,
				Title:    title,
				Evidence: []Evidence{{"mounts", number(n), "under 5,000"}},
				Culprit:  culprit,
				Cures:    []Cure{{What: "List repeated mounts, and unmount those that are not in use.", Command: "findmnt -rno TARGET | sed 's|/[0-9a-f]\\{64\\}.*|/ID|' | sort | uniq -c | sort -n | tail"}},
			}}
		},
	}
}
