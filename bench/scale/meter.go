package scale

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/bench"
	"holdfast/internal/platform/store"
)

// meter collects samples in milliseconds, by name and by part of the run. Any goroutine may
// use it.
type meter struct {
	fenced atomic.Int64 // nodes that took their lease for lost
	events atomic.Int64 // events of all watches

	mu      sync.Mutex
	part    string
	lostAt  time.Time
	first   chan struct{} // closed when a directory sees the first lost session go
	samples map[string][]float64
	errors  map[string]int
	refusal error // the last error of a client
}

func newMeter() *meter {
	return &meter{samples: map[string][]float64{}, errors: map[string]int{}}
}

// begin starts a part of the run. The meter drops samples of the part "".
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

// call records a call of the store. ErrTaken is not a failure.
func (m *meter) call(what string, start time.Time, err error) {
	m.add(what, time.Since(start))
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.errors[what]++
	}
}

// event records that a directory has seen a write. A claim's record has the time at which
// it was sent. After the loss, only lost sessions go.
func (m *meter) event(e store.Event) {
	m.events.Add(1)
	switch {
	case e.Deleted:
		m.seenGone()
	case e.Owner.State == holdfast.Claimed:
		m.add("watch lag", time.Since(e.Owner.ClaimedAt))
	}
}

// lose records that nodes vanish now. The channel is closed when a directory sees the first
// of their sessions go.
func (m *meter) lose() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lostAt, m.first = time.Now(), make(chan struct{})
	return m.first
}

func (m *meter) seenGone() {
	since := m.sinceLoss()
	if since == 0 {
		return
	}
	m.add("loss seen by a directory", since)
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.first:
	default:
		close(m.first)
	}
}

// sinceLoss returns the time since nodes vanished, 0 before.
func (m *meter) sinceLoss() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lostAt.IsZero() {
		return 0
	}
	return time.Since(m.lostAt)
}

// owned records a claim of a lost session by another node.
func (m *meter) owned() { m.add("owned again", m.sinceLoss()) }

// refused records an error of a client.
func (m *meter) refused(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errors["a client's request"]++
	m.refusal = err
}

// rows returns the distributions of a part of the run, by name.
func (m *meter) rows(part string) []bench.Row {
	m.mu.Lock()
	defer m.mu.Unlock()
	var rows []bench.Row
	for _, name := range slices.Sorted(maps.Keys(m.samples)) {
		if strings.HasSuffix(name, ", "+part) {
			rows = append(rows, bench.NewRow(name, "ms", m.samples[name]))
		}
	}
	return rows
}

// row returns one distribution.
func (m *meter) row(what, part string) bench.Row {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := what + ", " + part
	return bench.NewRow(name, "ms", m.samples[name])
}

// failures describes the failed calls, with their number.
func (m *meter) failures() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, what := range slices.Sorted(maps.Keys(m.errors)) {
		out = append(out, fmt.Sprintf("failed %d times: %s", m.errors[what], what))
	}
	if m.refusal != nil {
		out = append(out, fmt.Sprintf("the last error that a client got: %v", m.refusal))
	}
	return out
}
