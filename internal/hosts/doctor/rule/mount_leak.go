package rule

import "holdfast/internal/hosts/doctor/fact"

const manyMounts = 5000

// mountLeak are mounts that nobody takes away.
func mountLeak() Rule {
	return Rule{
		Name:      "mount-leak",
		Signal:    "lines of /proc/1/mountinfo",
		Threshold: "over 5,000",
		Why:       "each new mount namespace copies all of them, and systemd reads all at each change; a container has about five",
		Source:    "Documentation/filesystems/sharedsubtree.rst. The threshold is a judgement",
		Needs:     []string{fact.HostMounts},
		Judge: func(s *fact.Set) []Finding {
			n, _ := s.Host(fact.HostMounts)
			if n <= manyMounts {
				return nil
			}
			return []Finding{{
				Severity: Warning,
				Title:    "the host has very many mounts",
				Evidence: []Evidence{{"mounts", number(n), "under 5,000"}},
				Cures:    []Cure{{What: "See which are there again and again, and unmount what nobody uses.", Command: "findmnt -rno TARGET | sed 's|/[0-9a-f]\\{64\\}.*|/ID|' | sort | uniq -c | sort -n | tail"}},
			}}
		},
	}
}
