package gc

import (
	"math"
	"slices"
	"sync"
	"time"

	"holdfast"
)

// Harm is what is kept of spin-ups beside deletions and of those without, and
// what was learnt about this host.
type Harm struct {
	Beside    Sample          `json:"beside"`
	Without   Sample          `json:"without"`
	Suspended holdfast.Millis `json:"suspended_ms"` // of all cycles
	Gaps      []time.Duration `json:"gaps_ns,omitempty"`
	Linked    float64         `json:"linked_rate,omitempty"` // seconds a name
	Plain     float64         `json:"plain_rate,omitempty"`
}

// Sample is a number of spin-ups: all are counted, the last ones' times are kept.
type Sample struct {
	Count int               `json:"count"`
	Slow  int               `json:"slow"`
	Took  []holdfast.Millis `json:"took_ms"`
}

// sampleKept is how many times are kept of each kind of spin-up.
const sampleKept = 2000

func (s *Sample) add(took time.Duration, slow bool) {
	s.Count++
	if slow {
		s.Slow++
	}
	if len(s.Took) == sampleKept {
		s.Took = s.Took[1:]
	}
	s.Took = append(s.Took, holdfast.Millis(took))
}

// Figures sum a Sample up. Quantiles are by nearest rank, over the times kept.
type Figures struct {
	Count       int             `json:"count"`
	Slow        int             `json:"slow"`
	SlowPercent float64         `json:"slow_percent"`
	P50         holdfast.Millis `json:"p50_ms"`
	P99         holdfast.Millis `json:"p99_ms"`
}

func (s Sample) figures() Figures {
	f := Figures{Count: s.Count, Slow: s.Slow}
	if s.Count == 0 || len(s.Took) == 0 {
		return f
	}
	f.SlowPercent = 100 * float64(s.Slow) / float64(s.Count)
	sorted := slices.Sorted(slices.Values(s.Took))
	rank := func(q float64) holdfast.Millis { return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)] }
	f.P50, f.P99 = rank(.5), rank(.99)
	return f
}

// window is a removal that an engine worked on; end is zero while it does.
type window struct{ begin, end time.Time }

// watch knows when deletions ran and judges spin-ups by it. Methods may be called
// from any goroutine.
type watch struct {
	mu      sync.Mutex
	windows []window
	harm    Harm
	changed bool
}

// windowsKept covers far more than the longest spin-up.
const windowsKept = 4096

// open notes that a removal begins; the function that it has ended.
func (w *watch) open() (done func() time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.windows) == windowsKept {
		w.windows = slices.Delete(w.windows, 0, windowsKept/2)
	}
	begin := time.Now()
	w.windows = append(w.windows, window{begin: begin})
	return func() time.Duration {
		w.mu.Lock()
		defer w.mu.Unlock()
		end := time.Now()
		for i := len(w.windows) - 1; i >= 0; i-- {
			if w.windows[i].begin.Equal(begin) {
				w.windows[i].end = end
				break
			}
		}
		return end.Sub(begin)
	}
}

// during reports whether a removal ran at any moment between the two.
func (w *watch) during(begin, end time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.windows, func(x window) bool {
		return x.begin.Before(end) && (x.end.IsZero() || x.end.After(begin))
	})
}

// observe judges a spin-up that has ended, and counts it.
func (w *watch) observe(begin time.Time, took time.Duration, slow bool) bool {
	beside := w.during(begin, begin.Add(took))
	w.mu.Lock()
	defer w.mu.Unlock()
	if beside {
		w.harm.Beside.add(took, slow)
	} else {
		w.harm.Without.add(took, slow)
	}
	w.changed = true
	return beside
}

// suspended adds time that deletions waited.
func (w *watch) suspended(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.harm.Suspended += holdfast.Millis(d)
	w.changed = true
}

// now is all that is known.
func (w *watch) now() Harm {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.harm
	h.Beside.Took, h.Without.Took = slices.Clone(h.Beside.Took), slices.Clone(h.Without.Took)
	return h
}
