package gc

import (
	"math"
	"slices"
	"sync"
	"time"

	"holdfast"
)

// Harm is the saved record of spin-ups beside deletions and without them, with
// the learnt rates and gaps of this host.
type Harm struct {
	Beside    Sample          `json:"beside"`
	Without   Sample          `json:"without"`
	Suspended holdfast.Millis `json:"suspended_ms"` // sum over all cycles
	Gaps      []time.Duration `json:"gaps_ns,omitempty"`
	Linked    float64         `json:"linked_rate,omitempty"` // seconds per name
	Plain     float64         `json:"plain_rate,omitempty"`
}

// Sample counts spin-ups and keeps the durations of the last ones.
type Sample struct {
	Count int               `json:"count"`
	Slow  int               `json:"slow"`
	Took  []holdfast.Millis `json:"took_ms"`
}

// sampleKept is the number of durations kept per Sample.
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

// Figures summarize a Sample. Quantiles use the nearest rank over the kept
// durations.
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

// window is the time range of a removal in the engine. end is zero while the
// removal runs.
type window struct{ begin, end time.Time }

// watch records when deletions ran and attributes spin-ups to them. Methods may
// be called from any goroutine.
type watch struct {
	mu      sync.Mutex
	windows []window
	harm    Harm
	changed bool
}

// windowsKept covers far more time than the longest spin-up takes.
const windowsKept = 4096

// open records the start of a removal. The returned function records its end and
// returns its duration.
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

// during reports whether a removal ran at any time between begin and end.
func (w *watch) during(begin, end time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.windows, func(x window) bool {
		return x.begin.Before(end) && (x.end.IsZero() || x.end.After(begin))
	})
}

// observe counts a finished spin-up and reports whether a deletion ran during it.
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

// suspended adds time for which deletions waited.
func (w *watch) suspended(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.harm.Suspended += holdfast.Millis(d)
	w.changed = true
}

// now returns the current record.
func (w *watch) now() Harm {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.harm
	h.Beside.Took, h.Without.Took = slices.Clone(h.Beside.Took), slices.Clone(h.Without.Took)
	return h
}
