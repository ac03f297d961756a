package session

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"holdfast"
	"holdfast/internal/kill"
)

// StopClaiming refuses new sessions from now on, with holdfast.ErrDraining, and
// tells the boots in progress to give up. It returns how many those are.
func (m *Manager) StopClaiming() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = true
	n := 0
	for _, e := range m.sessions {
		if e.phase == booting {
			e.cancel(holdfast.ErrDraining)
			n++
		}
	}
	return n
}

// Claim takes new sessions again after StopClaiming.
func (m *Manager) Claim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = false
}

// Draining reports whether new sessions are refused.
func (m *Manager) Draining() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.draining
}

// Batch is a set of sessions that leave together. Its methods are called in the
// order Targets, Release, by one goroutine.
type Batch struct {
	m       *Manager
	entries []*entry
}

// Condemn closes every session that runs to newcomers and returns them. The
// caller kills the targets and then calls Release.
func (m *Manager) Condemn() *Batch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Batch{m: m, entries: m.markLocked(slices.Collect(maps.Values(m.sessions))...)}
}

// Targets are the containers that have to die.
func (b *Batch) Targets() []*kill.Target { return targets(b.entries) }

// Release gives up the sessions whose containers the report saw dead, in as few
// writes as the store allows, and returns how many. It may be called again
// after an error.
func (b *Batch) Release(ctx context.Context, report holdfast.KillReport) (int, error) {
	b.m.deps.Metrics.killed(report)
	n, err := b.m.releaseDead(ctx, b.entries, report)
	if err != nil {
		return n, fmt.Errorf("giving up %d sessions: %w", len(b.entries), err)
	}
	return n, nil
}

// Settle waits until no boot is in progress and nothing is leaving.
func (m *Manager) Settle(ctx context.Context) error {
	for {
		e, wait := m.unsettled()
		if e == nil {
			return nil
		}
		if err := m.await(ctx, e, wait); err != nil {
			return err
		}
	}
}

func (m *Manager) unsettled() (*entry, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.sessions {
		if e.phase == booting || e.phase == leaving && !e.stuck {
			return e, e.gone
		}
	}
	return nil, nil
}
