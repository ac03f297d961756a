package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
)

// Move is Stop for a session that continues on another node. If its template saves
// memory and there is time until the moment until, Move saves the memory before it
// kills the container. Lost memory is in the report and is not an error. Errors:
// holdfast.ErrNotFound, and one that wraps holdfast.ErrBusy if the session is not
// ready.
func (m *Manager) Move(ctx context.Context, key holdfast.SessionKey, until time.Time) (holdfast.MoveReport, error) {
	m.mu.Lock()
	e := m.sessions[key]
	if e == nil || e.phase == failed {
		m.mu.Unlock()
		return holdfast.MoveReport{}, fmt.Errorf("session %s: %w", key, holdfast.ErrNotFound)
	}
	if e.phase != ready {
		m.mu.Unlock()
		return holdfast.MoveReport{}, fmt.Errorf("session %s boots or leaves: %w", key, holdfast.ErrBusy)
	}
	b := &Batch{m: m, entries: m.markLocked(e)}
	m.mu.Unlock()
	m.announce(ctx, b.entries...)
	begun := time.Now()
	var r holdfast.MoveReport
	// A move that has begun is finished even if ctx ends.
	ending := context.WithoutCancel(ctx)
	if s := b.Keep(until); s != nil {
		saved := s.Run(ending)
		b.ReleaseLater()
		r.Memory, r.KillReport = saved.Memory, saved.Kill
		r.Steps = append(r.Steps, holdfast.Step{Name: "save", Took: saved.Memory.Took, Count: saved.Memory.Saved})
	}
	if len(b.entries) > 0 { // not saved
		r.KillReport = m.end(ending, slices.Clone(b.entries))
	}
	r.Took = holdfast.Millis(time.Since(begun))
	if len(r.Left) > 0 {
		return r, nil
	}
	return r, m.await(ctx, e, e.gone)
}
