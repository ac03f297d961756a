package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	manyMounts = 5000
	manyHeld   = 200 // mount namespaces that one process keeps open
)

// mountLeak finds mounts that are never unmounted.
func mountLeak() Rule {
	return Rule{
		Name:      "mount-leak",
		Signal:    "lines of /proc/1/mountinfo, of the mountinfo of each other mount namespace, and the mount namespaces that a process keeps open",
		Threshold: "over 5,000 mounts, or over 200 namespaces that one process keeps open",
		Why:       "each new mount namespace copies all mounts, and systemd reads all of them at each change; a container has about five. A namespace that is kept open keeps its copy of all mounts",
		Source:    "Documentation/filesystems/sharedsubtree.rst. The threshold is a judgement",
		Needs:     []string{fact.HostMounts},
		Judge: func(s *fact.Set) []Finding {
			n, _ := s.Host(fact.HostMounts)
			title, culprit := "the host has very many mounts", fact.Subject{}
			if most, in := worst(s.Of(fact.Mounts)); n <= manyMounts && in > manyMounts {
				n, title, culprit = in, "a container has very many mounts", most
			}
			held := heldNamespaces(s)
			if n <= manyMounts {
				return held
			}
			return append(held, Finding{
				Severity: Warning,
				Title:    title,
				Evidence: []Evidence{{"mounts", number(n), "under 5,000"}},
				Culprit:  culprit,
				Cures:    []Cure{{What: "List repeated mounts, and unmount those that are not in use.", Command: "findmnt -rno TARGET | sed 's|/[0-9a-f]\\{64\\}.*|/ID|' | sort | uniq -c | sort -n | tail"}},
			})
		},
	}
}

// heldNamespaces finds processes that keep many mount namespaces open.
func heldNamespaces(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.HeldMounts) {
		if f.Value <= manyHeld {
			break
		}
		found = append(found, Finding{
			Severity: Warning,
			Title:    "a process keeps very many mount namespaces open, each with all its mounts",
			Evidence: []Evidence{{"mount namespaces that it keeps open", number(f.Value), "under 200"}},
			Culprit:  f.Subject,
			Cures:    []Cure{{What: "Find out why it does not close them; they are gone with the process.", Command: "ls -l /proc/PID/fd | grep mnt:"}},
		})
	}
	return found
}
