package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

// fix is a change of the kernel that ended a pathology.
type fix struct {
	major, minor int // since which version
	what         string
	commit       string // id or subject
}

// fixes are those that container hosts were slow without.
func fixes() []fix {
	return []fix{
		{5, 4, "dead memory cgroups are no longer held by their slab memory", "mm: memcg/slab: reparent memcg kmem_caches on cgroup removal"},
		{5, 4, "containers far below their CPU limit are no longer throttled", "de53fd7aedb1"},
		{5, 5, "those who empty all CPUs' LRU batches at the same time do it once for all, instead of one after the other", "eef1a429f234"},
	}
}

// oldKernel is a kernel from before a known fix.
func oldKernel() Rule {
	return Rule{
		Name:      "old-kernel",
		Signal:    "uname -r beside a list of fixes",
		Threshold: "older than a fix: Linux 5.5 has all of them",
		Why:       "what the fix mended may come back here; distributions carry fixes into older versions, so that it is a notice",
		Source:    "the kernel's history; Shopify's hosts (slab of dead memory cgroups), kubernetes#67577 (throttling), the commit messages",
		Needs:     []string{fact.KernelRelease},
		Judge: func(s *fact.Set) []Finding {
			release := s.Text(fact.KernelRelease)
			var major, minor int
			if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n < 2 {
				return nil // not a version that we know how to compare
			}
			f := Finding{
				Severity: Notice,
				Title:    "the kernel is older than fixes that container hosts need",
				Evidence: []Evidence{{"kernel", release, "5.5 or newer"}},
				Cures:    []Cure{{What: "Update the kernel, unless its changelog has these commits."}},
			}
			for _, x := range fixes() {
				if major < x.major || major == x.major && minor < x.minor {
					f.Evidence = append(f.Evidence, Evidence{x.what, "not in " + release, fmt.Sprintf("since %d.%d (%s)", x.major, x.minor, x.commit)})
				}
			}
			if len(f.Evidence) == 1 {
				return nil
			}
			return []Finding{f}
		},
	}
}
