package gc

import (
	"slices"
	"sync"
	"time"
)

// arrivals learns how long this host is quiet between spin-ups. Its methods may
// be called from any goroutine.
type arrivals struct {
	mu   sync.Mutex
	gaps []time.Duration // the last ones, oldest first
}

const (
	gapsKept = 512
	// risk is how often a deletion may be met by a spin-up that comes in its
	// middle, by what was learnt.
	risk = 0.05
	// fewGaps is how many gaps say nothing yet.
	fewGaps = 20
	// shortLock is a deletion that a spin-up hardly notices: creates of an
	// idle engine differ by as much from each other (measured: half of them
	// take 30 ms, one in a hundred 200).
	shortLock = 150 * time.Millisecond
	// longestQuiet is the most quiet time that is asked for: after it the
	// wait costs the disk more than it spares the spin-ups.
	longestQuiet = 30 * time.Second
)

// observe notes a gap between the end of the last spin-up and the begin of the
// next.
func (a *arrivals) observe(gap time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.gaps) == gapsKept {
		a.gaps = a.gaps[1:]
	}
	a.gaps = append(a.gaps, gap)
}

// quietFor is how long a host has to have been quiet so that it stays so for
// locked: the shortest time q such that of the gaps that lasted q at most one in
// twenty ended within locked after. Where nothing is learnt yet, it is as long as
// the deletion itself.
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
		end, _ := slices.BinarySearch(gaps, quiet+locked) // gaps[i:end] would be met
		if float64(end-i) <= risk*float64(len(gaps)-i) {
			return min(quiet, longestQuiet)
		}
	}
	return min(gaps[len(gaps)-1]+1, longestQuiet)
}

// learnt is what there is to keep over a restart.
func (a *arrivals) learnt() []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.gaps)
}

// recall takes in what was kept, where nothing was learnt since.
func (a *arrivals) recall(gaps []time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.gaps) == 0 {
		a.gaps = slices.Clone(gaps[max(0, len(gaps)-gapsKept):])
	}
}
