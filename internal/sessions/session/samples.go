package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
)

const (
	// samplePause is the time between two samples, of any session: one takes some 20 µs, so
	// all of them take about two thousandths of a CPU.
	samplePause = 10 * time.Millisecond
	// quietPause is the time between two samples of a session that is far from its limit and
	// does not grow.
	quietPause = 5 * time.Second
	// idlePause is that of such a session that has also used at most a hundredth of a CPU.
	idlePause = 30 * time.Second
	// readPause is the longest time for which the memory of an idle session is taken from the sample
	// before: it changes only if the kernel reclaims some.
	readPause = time.Minute
)

// memory is what a session's container has used recently.
type memory struct {
	limit   int64 // of memory, bytes; 0: none
	samples []holdfast.UsageSample
	read    time.Time // when the memory of a sample was last read from the kernel
}

// due reports whether a sample is to be taken: every second if the memory is over half of
// its limit or has grown by a sixteenth between the last two samples, and otherwise every
// quietPause or idlePause.
func (y *memory) due(now time.Time) bool {
	n := len(y.samples)
	if n < 2 {
		return true
	}
	last, before := y.samples[n-1], y.samples[n-2]
	pause := quietPause
	if used := time.Duration(last.CPU - before.CPU); used*100 <= last.At.Sub(before.At) {
		pause = idlePause
	}
	return now.Sub(last.At) >= pause-time.Second/2 || y.limit > 0 && last.Memory > y.limit/2 || last.Memory-before.Memory > before.Memory/16
}

// take takes a sample of a container, and reports whether it read the memory.
func (y *memory) take(group kill.Memory) (s holdfast.UsageSample, read bool, err error) {
	s.At = time.Now().UTC()
	cpu, err := group.CPU()
	s.CPU = holdfast.Millis(cpu) // 0 if it is unknown
	if n := len(y.samples); err == nil && n > 0 && y.samples[n-1].CPU == s.CPU && s.At.Sub(y.read) < readPause {
		if last := y.samples[n-1].Memory; y.limit == 0 || last <= y.limit/2 {
			s.Memory = last
			return s, false, nil
		}
	}
	s.Memory, err = group.Usage()
	return s, true, err
}

// add adds a sample, and forgets the oldest if there are too many.
func (y *memory) add(s holdfast.UsageSample, read bool) {
	if read {
		y.read = s.At
	}
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
	h := &holdfast.MemoryHistory{Limit: y.limit, Peak: peak, Samples: []holdfast.MemorySample{}}
	for _, s := range y.samples {
		h.Samples = append(h.Samples, holdfast.MemorySample{At: s.At, Bytes: s.Memory})
	}
	return h
}

// firstSample is the memory of a container that has become ready: it may end before the next
// sample.
func firstSample(group kill.Memory) (y memory) {
	s, read, err := y.take(group)
	if err != nil {
		return y // it has just ended, or has no group of its own
	}
	y.limit = group.Limit()
	y.add(s, read)
	return y
}

// Usage returns what a session's container uses, the last sample at most quietPause old.
// holdfast.ErrNotFound if the session is not ready on this node.
func (m *Manager) Usage(key holdfast.SessionKey) (holdfast.Usage, error) {
	m.mu.Lock()
	e := m.sessions[key]
	if e == nil || e.phase != ready || e.target == nil {
		m.mu.Unlock()
		return holdfast.Usage{}, fmt.Errorf("session %s has no running container: %w", key, holdfast.ErrNotFound)
	}
	group, known := e.target.Memory(), e.end.memory
	u := holdfast.Usage{MemoryLimit: known.limit, Samples: append([]holdfast.UsageSample{}, known.samples...)}
	m.mu.Unlock()
	if n := len(u.Samples); n == 0 || time.Since(u.Samples[n-1].At) > quietPause {
		known.samples = u.Samples
		if s, read, err := known.take(group); err == nil { // otherwise it has just ended
			known.add(s, read)
			u.Samples = known.samples
		}
	}
	u.PageCache = group.Cache()
	return u, nil
}

// sampleMemory samples what sessions use, every second if they are few, until ctx is done.
func (m *Manager) sampleMemory(ctx context.Context) {
	for {
		begun := time.Now()
		n := m.sampleAll()
		pause := time.Duration(n)*samplePause - time.Since(begun)
		if pause > time.Second && tasks.Sleep(ctx, pause) != nil {
			return
		}
		select {
		case <-tasks.Tick(time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// sampleAll takes one sample of each session that is due, and returns their number.
func (m *Manager) sampleAll() int {
	type one struct {
		e     *entry
		group kill.Memory
		known memory
	}
	var all []one
	now := time.Now()
	m.mu.Lock()
	for _, e := range m.sessions {
		if e.phase == ready && e.end.memory.due(now) {
			all = append(all, one{e, e.target.Memory(), e.end.memory})
		}
	}
	m.mu.Unlock()
	for _, x := range all {
		s, read, err := x.known.take(x.group)
		if err != nil {
			continue // it has just ended
		}
		limit := int64(0)
		if len(x.known.samples) == 0 {
			limit = x.group.Limit()
		}
		m.mu.Lock()
		x.e.end.memory.limit = max(x.e.end.memory.limit, limit)
		x.e.end.memory.add(s, read)
		m.mu.Unlock()
	}
	return len(all)
}
