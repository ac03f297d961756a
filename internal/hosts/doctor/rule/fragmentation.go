package rule

import "holdfast/internal/hosts/doctor/fact"

// manyStalls is in stalls a second.
const manyStalls = 10

// fragmentation is memory of which no large block is left, so that who wants one
// has to move pages first.
func fragmentation() Rule {
	return Rule{
		Name:      "fragmentation",
		Signal:    "compact_stall of vmstat, and free blocks of 2 MiB and more by buddyinfo",
		Threshold: "over 10 stalls/s, and no such block in any zone but the small ones (DMA)",
		Why:       "an allocation that compacts memory by itself stops the program for milliseconds; while large blocks are left it need not",
		Source:    "Documentation/admin-guide/mm/concepts.rst. The threshold is a judgement",
		Needs:     []string{fact.CompactStalls, fact.HighOrderFree},
		Judge: func(s *fact.Set) []Finding {
			stalls, _ := s.Host(fact.CompactStalls)
			blocks := 0.0
			for _, f := range s.Of(fact.HighOrderFree) {
				if !smallZone(f.Subject.Device) {
					blocks += f.Value
				}
			}
			if stalls < manyStalls || blocks > 0 {
				return nil
			}
			return []Finding{{
				Severity: Warning,
				Title:    "memory is fragmented: programs stop until pages are moved",
				Evidence: []Evidence{
					{"stalls for compaction", perSecond(stalls), "under 1/s"},
					{"free blocks of 2 MiB and more", number(blocks), "hundreds"},
				},
				Cures: []Cure{
					{What: "Have the kernel make huge pages later instead of at once.", Command: "holdfast doctor cure sysctl transparent_hugepage.defrag --apply"},
					{What: "Compact at a quiet time.", Command: "echo 1 > /proc/sys/vm/compact_memory"},
				},
			}}
		},
	}
}

// smallZone reports whether a zone is one for old devices: "Node 0 DMA".
func smallZone(name string) bool {
	return len(name) >= 4 && name[len(name)-4:] == " DMA"
}
