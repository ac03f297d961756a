package bench

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/store"
)

// meter collects samples by name, in milliseconds, separately for the parts of
// a run. Any goroutine may use it.
type meter struct {
	fenced atomic.Int64 // nodes that thought that they had lost their lease
	events atomic.Int64 // of watches, read by whomever

	mu      sync.Mutex
	part    string
	samples map[string][]float64
	errors  map[string]int
}

func newMeter() *meter {
	return &meter{samples: map[string][]float64{}, errors: map[string]int{}}
}

// begin names the part of the run that what follows belongs to. "" is not kept.
func (m *meter) begin(part string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.part = part
}

func (m *meter) add(what string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.part != "" {
		name := what + ", " + m.part
		m.samples[name] = append(m.samples[name], float64(d)/1e6)
	}
}

// call notes a call of the store. That a key is taken is an answer.
func (m *meter) call(what string, start time.Time, err error) {
	m.add(what, time.Since(start))
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.errors[what]++
	}
}

// event notes when a directory sees a write. A claim's record says when it was
// sent.
func (m *meter) event(e store.Event) {
	m.events.Add(1)
	if e.Owner.State == holdfast.Claimed && !e.Deleted {
		m.add("watch lag", time.Since(e.Owner.ClaimedAt))
	}
}

// rows are the distributions, by name.
func (m *meter) rows() []Row {
	m.mu.Lock()
	defer m.mu.Unlock()
	var rows []Row
	for _, name := range slices.Sorted(maps.Keys(m.samples)) {
		rows = append(rows, NewRow(name, "ms", m.samples[name]))
	}
	return rows
}
