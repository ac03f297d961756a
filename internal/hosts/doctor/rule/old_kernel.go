package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

// fix is a kernel change that ended a pathology.
type fix struct {
	major, minor int // the first version with the fix
	what         string
	commit       string // id or subject
}

// fixes returns the fixes without which container hosts were slow.
func fixes() []fix {
	return []fix{
		{5, 4, "slab memory no longer holds dying memory cgroups", "mm: memcg/slab: reparent memcg kmem_caches on cgroup removal"},
		{5, 4, "containers far below their CPU limit are no longer throttled", "de53fd7aedb1"},
		{5, 5, "concurrent drains of all CPUs' LRU batches are done once for all callers, instead of one after the other", "eef1a429f234"},
	}
}

// oldKernel finds a kernel that is older than a known fix.
func oldKernel() Rule {
	return Rule{
		Name:      "old-kernel",
		Signal:    "uname -r, compared with a list of fixes",
		Threshold: "older than a fix: Linux 5.5 has all of them",
		Why:       "the problem that the fix solved may occur on this kernel; distributions backport fixes to older versions, so this is only a notice",
		Source:    "the kernel's history; Shopify's hosts (slab of dying memory cgroups), kubernetes#67577 (throttling), the commit messages",
		Needs:     []string{fact.KernelRelease},
		Judge: func(s *fact.Set) []Finding {
			release := s.Text(fact.KernelRelease)
			var major, minor int
			if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n < 2 {
				return nil // not a version number that can be compared
			}
			f := Finding{
				Severity: Notice,
				Title:    "the kernel is older than fixes that container hosts need",
				Evidence: []Evidence{{"kernel", release, "5.5 or newer"}},
				Cures:    []Cure{{What: "Update the kernel, unless its changelog contains these commits."}},
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
