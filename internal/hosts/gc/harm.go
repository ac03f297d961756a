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
	// The seconds per name that the engine takes for a removal: for names that were
	// linked into the trash before, and for all others.
	Linked float64 `json:"linked_rate,omitempty"`
	Plain  float64 `json:"plain_rate,omitempty"`
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
	s.Took = appendBounded(s.Took, holdfast.Millis(took), sampleKept)
}

// appendBounded appends v. If the list has most elements, it drops the oldest.
func appendBounded[T any](list []T, v T, most int) []T {
	return append(list[max(0, len(list)+1-most):], v)
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

// stats records spin-ups and removals on this host. It attributes spin-ups to
// removals, and estimates how long a removal takes and when the next spin-up begins.
// Methods may be called from any goroutine.
type stats struct {
	mu      sync.Mutex
	windows []*window
	harm    Harm
	changed bool // since the last save
}

func newStats() *stats { return &stats{harm: Harm{Linked: firstLinked, Plain: firstPlain}} }

// load replaces the record with a saved one, except for gaps that were observed
// meanwhile.
func (s *stats) load(saved Harm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.harm.Gaps) > 0 {
		saved.Gaps = s.harm.Gaps
	}
	if saved.Linked <= 0 || saved.Plain <= 0 {
		saved.Linked, saved.Plain = s.harm.Linked, s.harm.Plain
	}
	s.harm = saved
}

// windowsKept covers far more time than the longest spin-up takes.
const windowsKept = 4096

// open records the start of a removal. The returned function records its end and
// returns its duration.
func (s *stats) open() (done func() time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &window{begin: time.Now()}
	s.windows = appendBounded(s.windows, w, windowsKept)
	return func() time.Duration {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.end = time.Now()
		return w.end.Sub(w.begin)
	}
}

// during reports whether a removal ran at any time between begin and end.
func (s *stats) during(begin, end time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.windows, func(w *window) bool {
		return w.begin.Before(end) && (w.end.IsZero() || w.end.After(begin))
	})
}

// observe counts a finished spin-up and reports whether a deletion ran during it.
func (s *stats) observe(begin time.Time, took time.Duration, slow bool) bool {
	beside := s.during(begin, begin.Add(took))
	s.mu.Lock()
	defer s.mu.Unlock()
	if beside {
		s.harm.Beside.add(took, slow)
	} else {
		s.harm.Without.add(took, slow)
	}
	s.changed = true
	return beside
}

// suspended adds time for which deletions waited.
func (s *stats) suspended(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.harm.Suspended += holdfast.Millis(d)
	s.changed = true
}

// now returns the current record.
func (s *stats) now() Harm {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.harm
	h.Beside.Took, h.Without.Took, h.Gaps = slices.Clone(h.Beside.Took), slices.Clone(h.Without.Took), slices.Clone(h.Gaps)
	return h
}

// save calls write with the current record if spin-ups or waiting time were recorded
// since the last save.
func (s *stats) save(write func(Harm) error) error {
	if !s.setChanged(false) {
		return nil
	}
	err := write(s.now())
	if err != nil {
		s.setChanged(true)
	}
	return err
}

func (s *stats) setChanged(changed bool) (before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.changed = s.changed, changed
	return before
}
