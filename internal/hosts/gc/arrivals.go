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
	fewGaps = 10
	// unnoticed is the longest lock that no spin-up notices.
	unnoticed = 10 * time.Millisecond
	// shortLock is the longest lock that need not fit into a gap. Creates on an idle engine vary
	// by as much (measured: median 30 ms, 99th percentile 50 to 200 ms).
	shortLock = 150 * time.Millisecond
	// longestQuiet is the longest idle time that a deletion requires. A longer wait
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

// pause returns for how much longer a deletion waits when the host has been idle for a time; 0 is
// not at all.
type pause func(idle time.Duration) time.Duration

// atLeast requires an idle time.
func atLeast(quiet time.Duration) pause {
	return func(idle time.Duration) time.Duration { return max(quiet-idle, 0) }
}

// pauseFor returns when a deletion that locks the engine for locked may begin: when at most one in
// twenty of the gaps that were as long as the present one ended within locked. A short deletion
// that never fits begins where most of the gaps have room for it. With fewer than fewGaps gaps a
// long deletion requires an idle time of locked. Nothing waits for more than longestQuiet.
func (s *stats) pauseFor(locked time.Duration) pause {
	s.mu.Lock()
	g := gaps{slices.Sorted(slices.Values(s.harm.Gaps)), locked}
	s.mu.Unlock()
	short := locked <= shortLock
	switch {
	case locked <= unnoticed, short && len(g.known) < fewGaps:
		return atLeast(0)
	case len(g.known) < fewGaps:
		return atLeast(min(locked, longestQuiet))
	}
	accepted := risk
	if short {
		accepted = max(risk, g.leastRisk())
	}
	return func(idle time.Duration) time.Duration {
		if idle >= longestQuiet || g.risk(idle) <= accepted {
			return 0
		}
		return min(g.next(idle, accepted), longestQuiet) - idle
	}
}

// gaps are the known gaps between spin-ups, the shortest first, and a deletion.
type gaps struct {
	known  []time.Duration
	locked time.Duration
}

// risk returns the share of the gaps of at least idle that end within the deletion; 0 if there is
// no such gap.
func (g gaps) risk(idle time.Duration) float64 {
	from, _ := slices.BinarySearch(g.known, idle)
	to, _ := slices.BinarySearch(g.known, idle+g.locked)
	return float64(to-from) / float64(max(1, len(g.known)-from))
}

// next returns the shortest idle time after idle with at most the accepted risk. The risk falls
// only where a gap ends.
func (g gaps) next(idle time.Duration, accepted float64) time.Duration {
	from, _ := slices.BinarySearch(g.known, idle)
	for _, gap := range g.known[from:] {
		if g.risk(gap+1) <= accepted {
			return gap + 1
		}
	}
	return longestQuiet
}

// leastRisk returns the least risk at any idle time that a tenth of the gaps reach.
func (g gaps) leastRisk() float64 {
	least := g.risk(0)
	for _, gap := range g.known {
		if gap >= g.known[len(g.known)*9/10] {
			break
		}
		least = min(least, g.risk(gap+1))
	}
	return least
}
