package rule

import "holdfast/internal/hosts/doctor/fact"

const manyRstat = 1000 // /s

// statReaders finds programs that read cgroup statistics so often that they block each
// other and the creation of groups.
func statReaders() Rule {
	return Rule{
		Name:      "stat-readers",
		Signal:    "tracepoint cgroup_rstat_lock_contended, by process",
		Threshold: "over 1,000/s",
		Why:       "one reader at a time flushes the statistics of all CPUs and holds one lock; single collisions are normal",
		Source:    "Documentation of the tracepoint in include/trace/events/cgroup.h; cadvisor#2259. The threshold is a judgement",
		Needs:     []string{fact.RstatWaits},
		Judge: func(s *fact.Set) []Finding {
			all, _ := s.Host(fact.RstatWaits)
			if all < manyRstat {
				return nil
			}
			culprit, rate := worst(s.Of(fact.RstatBy))
			return []Finding{{
				Severity: Warning,
				Title:    "readers of cgroup statistics block each other",
				Evidence: []Evidence{
					{"waits for the lock of the statistics", perSecond(all), "under 100/s"},
					{"of these by the process named", perSecond(rate), "-"},
				},
				Culprit: culprit,
				Cures:   []Cure{{What: "Configure the process to read less often (scrape interval, housekeeping interval)."}},
			}}
		},
	}
}
