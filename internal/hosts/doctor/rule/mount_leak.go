package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	manyMounts = 5000
	manyHeld   = 200 // mount namespaces that one process keeps open
	manySpaces = 100 // mount namespaces of the processes of one group
	perCPU     = 2   // of them for each CPU; builds in sandboxes have about one
)

// mountLeak finds mounts that are never unmounted.
func mountLeak() Rule {
	return Rule{
		Name:      "mount-leak",
		Signal:    "lines of /proc/1/mountinfo, of the mountinfo of each other mount namespace, the mount namespaces that a process keeps open, and those of the processes of each control group",
		Threshold: "over 5,000 mounts, or over 200 namespaces that one process keeps open. A notice: processes of one group with over 100 namespaces and over two for each CPU, over 50 of which existed when the observation began; a warning from over 200 with over 5,000 mounts",
		Why:       "each new mount namespace copies all mounts, and systemd reads all of them at each change; a container has about five. A namespace that is kept open keeps its copy of all mounts. A container, a service and a session of a user have one namespace each, in a group of its own, and a build in sandboxes has one for each CPU",
		Source:    "Documentation/filesystems/sharedsubtree.rst, mount_namespaces(7). The thresholds are judgements",
		Needs:     []string{fact.HostMounts},
		Judge: func(s *fact.Set) []Finding {
			n, _ := s.Host(fact.HostMounts)
			title, culprit := "the host has very many mounts", fact.Subject{}
			if most, in := worst(s.Of(fact.Mounts)); n <= manyMounts && in > manyMounts {
				n, title, culprit = in, "a container has very many mounts", most
			}
			held := append(heldNamespaces(s), groupNamespaces(s)...)
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

// groupNamespaces finds groups whose processes have many mount namespaces.
func groupNamespaces(s *fact.Set) (found []Finding) {
	cpus, _ := s.Host(fact.HostCPUs)
	for _, f := range s.Of(fact.GroupSpaces) {
		group := f.Subject.Device
		old, _ := s.Device(fact.GroupSpacesOld, group)
		mounts, _ := s.Device(fact.GroupMounts, group)
		if f.Value <= manySpaces || f.Value <= perCPU*cpus || old <= manySpaces/2 {
			continue
		}
		f.Subject.Device = ""
		x := Finding{
			Severity: Notice,
			Title:    "the processes of one control group have very many mount namespaces, each with a copy of all mounts",
			Evidence: []Evidence{
				{"mount namespaces of the group", number(f.Value), "one, or one for each sandbox"},
				{"mounts in them", number(mounts), "under 5,000"},
			},
			Culprit: f.Subject,
			Cures: []Cure{{What: "Find out why its processes do not end; a namespace is gone with its last process.",
				Command: "lsns -t mnt -o NS,NPROCS,PID,PPID,COMMAND"}},
		}
		if f.Value > manyHeld && mounts > manyMounts {
			x.Severity = Warning
		}
		found = append(found, x)
	}
	return found
}
