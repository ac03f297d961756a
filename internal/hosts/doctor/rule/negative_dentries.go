package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	manyNegative  = 1_000_000
	negativeShare = 0.20 // of slab
)

// negativeDentries finds a large cache of negative dentries: names of files that were
// looked up and do not exist.
func negativeDentries() Rule {
	return Rule{
		Name:      "negative-dentries",
		Signal:    "nr_negative of dentry-state times the size of a dentry, compared with Slab of meminfo; kernel memory of each container",
		Threshold: "over 1 million, and over 20 % of slab",
		Why:       "5 million took 1 GB; a container with 2.7 million took 3.6 s to kill instead of 87 ms. One million is normal on a large host with much other slab",
		Source:    "measured (docs/doctor.md); podman#19161",
		Needs:     []string{fact.DentryNegative, fact.SlabTotal},
		Judge: func(s *fact.Set) []Finding {
			n, _ := s.Host(fact.DentryNegative)
			size, _ := s.Host(fact.DentryBytes)
			slab, _ := s.Host(fact.SlabTotal)
			if n <= manyNegative || slab <= 0 || size < negativeShare*slab {
				return nil
			}
			f := Finding{
				Severity: Warning,
				Title:    fmt.Sprintf("%s negative dentries (names of missing files) fill the kernel's memory", number(n)),
				Evidence: []Evidence{
					{"negative dentries", number(n), "under 1,000,000"},
					{"their share of slab", percent(min(1, size/slab)), "under 20 %"},
				},
			}
			if by := s.Of(fact.GroupKernelMem); len(by) > 0 && by[0].Value > size/4 && by[0].Subject.Cgroup != "/" {
				f.Culprit = by[0].Subject
				f.Evidence = append(f.Evidence, Evidence{"kernel memory of the group named", bytes(by[0].Value), "some MiB"})
				f.Cures = []Cure{
					{What: "Empty that group only; other groups are not affected.", Command: "holdfast doctor cure dentries --cgroup " + groupPath(f.Culprit.Cgroup) + " --apply"},
					{What: "Give the container a memory limit, which bounds its dentries."},
				}
			}
			f.Cures = append(f.Cures, Cure{What: "Programs that use NSS (curl, for example) look up thousands of names that do not exist. This variable stops it.", Command: "NSS_SDB_USE_CACHE=yes"})
			return []Finding{f}
		},
	}
}
