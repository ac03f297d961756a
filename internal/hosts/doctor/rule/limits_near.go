package rule

import "holdfast/internal/hosts/doctor/fact"

const nearLimit = 0.90

// limitsNear finds limits on processes and files that are nearly reached.
func limitsNear() Rule {
	return Rule{
		Name:      "limits-near",
		Signal:    "pids.current / pids.max of each container, threads compared with pid_max and threads-max, file-nr",
		Threshold: "over 90 %",
		Why:       "at 100 % fork and open fail, and programs rarely report which limit was reached",
		Source:    "Documentation/admin-guide/cgroup-v2.rst, sysctl/fs.rst, sysctl/kernel.rst",
		Needs:     []string{fact.GroupsSeen, fact.HostThreads, fact.HostMaxPids, fact.HostFiles, fact.HostMaxFiles},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			near := func(what string, used float64, culprit fact.Subject, cure Cure) {
				if used > nearLimit {
					found = append(found, Finding{
						Severity: Warning, Title: what + ": nearly at the limit",
						Evidence: []Evidence{{what + " in use", percent(used), "under 90 %"}},
						Culprit:  culprit, Cures: []Cure{cure},
					})
				}
			}
			for _, f := range s.Of(fact.GroupPids) {
				near("processes of a container", f.Value, f.Subject, Cure{What: "Raise its limit, or find out why it has so many processes.", Command: "docker update --pids-limit N CONTAINER"})
			}
			ratio := func(used, most string) float64 {
				u, _ := s.Host(used)
				m, _ := s.Host(most)
				if m <= 0 {
					return 0
				}
				return u / m
			}
			near("the host's threads", ratio(fact.HostThreads, fact.HostMaxPids), fact.Subject{}, Cure{What: "Raise the limit.", Command: "holdfast doctor cure sysctl kernel.pid_max --apply"})
			near("the host's open files", ratio(fact.HostFiles, fact.HostMaxFiles), fact.Subject{}, Cure{What: "Raise the limit.", Command: "holdfast doctor cure sysctl fs.file-max --apply"})
			return found
		},
	}
}
