package gc

import (
	"slices"
	"time"
)

const (
	gapsKept = 512 // of the idle gaps between spin-ups
	// risk is the accepted probability, by the learnt gaps, that a spin-up begins
	// during a deletion.
	risk = 0.05
	// fewGaps is the number of gaps below which no conclusion is drawn.
	fewGaps = 20
	// shortLock is the longest lock that spin-ups hardly notice. Creates on an
	// idle engine vary by as much (measured: median 30 ms, 99th percentile 200
	// ms).
	shortLock = 150 * time.Millisecond
	// longestQuiet is the longest idle time that quietFor requires. A longer wait
	// costs more disk space than it saves in spin-up delay.
	longestQuiet = 30 * time.Second
)

// observeGap records the gap between the end of one spin-up and the start of the
// next.
func (s *stats) observeGap(gap time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.harm.Gaps = appendBounded(s.harm.Gaps, gap, gapsKept)
}

// quietFor returns how long the host must have been idle before a deletion that
// locks the engine for locked. It is the shortest time q for which at most one in
// twenty of the gaps of at least q ended within locked after q. With fewer than
// fewGaps gaps it returns locked. The result is at most longestQuiet.
func (s *stats) quietFor(locked time.Duration) time.Duration {
	s.mu.Lock()
	gaps := slices.Clone(s.harm.Gaps)
	s.mu.Unlock()
	switch {
	case locked <= shortLock:
		return 0
	case len(gaps) < fewGaps:
		return min(locked, longestQuiet)
	}
	slices.Sort(gaps)
	for i := range gaps {
		quiet := time.Duration(0)
		if i > 0 {
			quiet = gaps[i-1] + 1
		}
		end, _ := slices.BinarySearch(gaps, quiet+locked) // gaps[i:end] would end during the deletion
		if float64(end-i) <= risk*float64(len(gaps)-i) {
			return min(quiet, longestQuiet)
		}
	}
	return min(gaps[len(gaps)-1]+1, longestQuiet)
}
