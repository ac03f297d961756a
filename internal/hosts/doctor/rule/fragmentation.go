package rule

import (
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

// manyStalls is in stalls per second.
const manyStalls = 10

// fragmentation finds memory without large free blocks: an allocation of one has to move
// pages first.
func fragmentation() Rule {
	return Rule{
		Name:      "fragmentation",
		Signal:    "compact_stall of vmstat, and free blocks of at least 2 MiB in buddyinfo",
		Threshold: "over 10 stalls/s, and no such block in any zone except the small ones (DMA)",
		Why:       "an allocation that compacts memory stops the program for milliseconds; while large free blocks exist, this does not happen",
		Source:    "Documentation/admin-guide/mm/concepts.rst. The threshold is a judgement",
		Needs:     []string{fact.CompactStalls, fact.HighOrderFree},
		Judge: func(s *fact.Set) []Finding {
			stalls, _ := s.Host(fact.CompactStalls)
			blocks := 0.0
			for _, f := range s.Of(fact.HighOrderFree) {
				if !strings.HasSuffix(f.Subject.Device, " DMA") { // a small zone for old devices: "Node 0 DMA"
					blocks += f.Value
				}
			}
			if stalls < manyStalls || blocks > 0 {
				return nil
			}
			return []Finding{{
				Severity: Warning,
				Title:    "memory is fragmented: allocations stall until pages are moved",
				Evidence: []Evidence{
					{"stalls for compaction", perSecond(stalls), "under 1/s"},
					{"free blocks of at least 2 MiB", number(blocks), "hundreds"},
				},
				Cures: []Cure{
					{What: "Let the kernel build huge pages in the background instead of during the page fault.", Command: "holdfast doctor cure sysctl transparent_hugepage.defrag --apply"},
					{What: "Compact memory when the load is low.", Command: "echo 1 > /proc/sys/vm/compact_memory"},
				},
			}}
		},
	}
}
