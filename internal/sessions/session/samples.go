package session

import (
	"context"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/sessions/kill"
)

// samplePause is the time between two samples, of any session: one takes some 10 µs, so all
// of them take about a thousandth of a CPU.
const samplePause = 10 * time.Millisecond

// memory is the recent memory of a session's container.
type memory struct {
	limit   int64 // bytes; 0: none
	samples []holdfast.MemorySample
}

// add adds a sample, and forgets the oldest if there are too many.
func (y *memory) add(s holdfast.MemorySample) {
	if len(y.samples) == holdfast.MaxSamples {
		y.samples = slices.Delete(y.samples, 0, 1)
	}
	y.samples = append(y.samples, s)
}

// history returns the memory before the end of a container; nil if nothing is known.
func (y *memory) history(peak int64) *holdfast.MemoryHistory {
	if len(y.samples) == 0 && peak == 0 {
		return nil
	}
	return &holdfast.MemoryHistory{Limit: y.limit, Peak: peak, Samples: append([]holdfast.MemorySample{}, y.samples...)}
}

// firstSample is the memory of a container that has become ready: it may end before the next
// sample.
func firstSample(group kill.Memory) (y memory) {
	n, err := group.Usage()
	if err != nil {
		return y // it has just ended, or has no group of its own
	}
	y.limit = group.Limit()
	y.add(holdfast.MemorySample{At: time.Now().UTC(), Bytes: n})
	return y
}

// sampleMemory samples the memory of all sessions, every second if they are few, until ctx
// is done.
func (m *Manager) sampleMemory(ctx context.Context) {
	for {
		begun := time.Now()
		n := m.sampleAll()
		if !sleep(ctx, max(time.Second, time.Duration(n)*samplePause)-time.Since(begun)) {
			return
		}
	}
}

// sampleAll takes one sample of each session, and returns their number.
func (m *Manager) sampleAll() int {
	type one struct {
		e     *entry
		group kill.Memory
		first bool
	}
	var all []one
	m.mu.Lock()
	for _, e := range m.sessions {
		if e.phase == ready {
			all = append(all, one{e, e.target.Memory(), len(e.end.memory.samples) == 0})
		}
	}
	m.mu.Unlock()
	for _, x := range all {
		n, err := x.group.Usage()
		if err != nil {
			continue // it has just ended
		}
		limit := int64(0)
		if x.first {
			limit = x.group.Limit()
		}
		m.mu.Lock()
		x.e.end.memory.limit = max(x.e.end.memory.limit, limit)
		x.e.end.memory.add(holdfast.MemorySample{At: time.Now().UTC(), Bytes: n})
		m.mu.Unlock()
	}
	return len(all)
}
