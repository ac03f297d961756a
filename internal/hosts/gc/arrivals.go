package gc

import (
	"slices"
	"sync"
	"time"
)

// arrivals learns the distribution of the idle gaps between spin-ups on this
// host. Its methods may be called from any goroutine.
type arrivals struct {
	mu   sync.Mutex
	gaps []time.Duration // the last gapsKept gaps, oldest first
}

const (
	gapsKept = 512
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

// observe records the gap between the end of one spin-up and the start of the
// next.
func (a *arrivals) observe(gap time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.gaps) == gapsKept {
		a.gaps = a.gaps[1:]
	}
	a.gaps = append(a.gaps, gap)
}

// quietFor returns how long the host must have been idle before a deletion that
// locks the engine for locked. It is the shortest time q for which at most one in
// twenty of the gaps of at least q ended within locked after q. With fewer than
// fewGaps gaps it returns locked. The result is at most longestQuiet.
func (a *arrivals) quietFor(locked time.Duration) time.Duration {
	a.mu.Lock()
	gaps := slices.Clone(a.gaps)
	a.mu.Unlock()
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

// learnt returns a copy of the gaps, to be saved for a restart.
func (a *arrivals) learnt() []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.gaps)
}

// recall loads saved gaps unless new gaps have been observed.
func (a *arrivals) recall(gaps []time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.gaps) == 0 {
		a.gaps = slices.Clone(gaps[max(0, len(gaps)-gapsKept):])
	}
}
