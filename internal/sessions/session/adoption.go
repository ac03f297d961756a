package session

import (
	"context"
	"errors"
	"maps"
	"slices"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
)

// adoption is a running Adopt.
type adoption struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed at its end
}

// beginAdoption returns a context that LeaseLost cancels.
func (m *Manager) beginAdoption(ctx context.Context) (context.Context, func()) {
	a := &adoption{done: make(chan struct{})}
	ctx, a.cancel = context.WithCancelCause(ctx)
	m.mu.Lock()
	m.adoption = a
	m.mu.Unlock()
	return ctx, func() {
		a.cancel(nil)
		m.mu.Lock()
		m.adoption = nil
		m.mu.Unlock()
		close(a.done)
	}
}

// abortAdoption ends a running Adopt and waits until it has killed what it found.
func (m *Manager) abortAdoption(ctx context.Context) {
	m.mu.Lock()
	a := m.adoption
	m.mu.Unlock()
	if a == nil {
		return
	}
	a.cancel(ErrLeaseLost)
	select {
	case <-a.done:
	case <-ctx.Done():
	}
}

// killFound kills what an Adopt found. It starts with the containers whose init is
// already open, because they die at once, and then asks the engine about the others.
func (m *Manager) killFound(found []engine.Container) {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	m.mu.Lock()
	held := m.markLocked(slices.Collect(maps.Values(m.sessions))...)
	m.mu.Unlock()
	var dead []string
	if len(held) > 0 {
		report := m.deps.Killer.Kill(ctx, targets(held))
		m.deps.Metrics.killed(report)
		dead = report.Dead
		m.deps.Deadman.Forget(dead...)
		for _, e := range held {
			if slices.Contains(dead, e.target.ID) {
				m.unwatch(e)
				m.dropNetwork(e)
			}
		}
	}
	m.dropAdopted()
	var err error
	if found == nil { // the list was not reached
		found, err = m.listOwn(ctx)
	}
	if err = errors.Join(err, notDead(m.killOrphans(ctx, without(found, dead)))); err != nil {
		m.log.Error("the lease was lost while taking over: not everything is seen dead", "err", err)
	}
}

// dropAdopted forgets everything that an Adopt has taken over and leaves it running.
func (m *Manager) dropAdopted() {
	m.mu.Lock()
	held := slices.Collect(maps.Values(m.sessions))
	m.detached = nil
	m.mu.Unlock()
	for _, e := range held {
		m.close(e)
	}
}

// without returns the ids of the containers except the listed ones.
func without(list []engine.Container, but []string) (ids []string) {
	for _, c := range list {
		if !slices.Contains(but, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// targets returns the entries' targets.
func targets(entries []*entry) []*kill.Target {
	out := make([]*kill.Target, len(entries))
	for i, e := range entries {
		out[i] = e.target
	}
	return out
}
