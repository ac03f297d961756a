package session

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/sessions/move"
)

// suspendedPoll is the time between two looks whether a session is still suspended. Its note
// disappears without a boot on this node if the session is stopped, or its image expires.
const suspendedPoll = 15 * time.Second

// AwaitGone waits while this node has a session of that key that leaves. The error is that of
// ctx.
func (m *Manager) AwaitGone(ctx context.Context, key holdfast.SessionKey) error {
	for {
		m.mu.Lock()
		e := m.sessions[key]
		if e == nil || e.phase != leaving {
			m.mu.Unlock()
			return nil
		}
		m.mu.Unlock()
		if err := m.await(ctx, e, e.gone); err != nil {
			return err
		}
	}
}

// AwaitResume waits while the session is suspended, is being suspended or boots. It returns its
// route if it is ready on this node after that. Otherwise the route is zero. It is for a node
// that is not part of a fleet. The error is that of ctx.
func (m *Manager) AwaitResume(ctx context.Context, key holdfast.SessionKey, _ holdfast.Epoch) (holdfast.Route, error) {
	for {
		r, wait, begun := m.lookResumed(key)
		if wait == nil && r.Epoch == 0 {
			suspended, err := move.IsSuspended(ctx, m.deps.Store, key)
			if err == nil && !suspended {
				// A boot deletes the note, and may have begun between the two looks.
				if r, wait, _ = m.lookResumed(key); wait == nil {
					return r, nil
				}
			} else {
				m.awaitBegun(ctx, key, begun)
			}
		}
		if r.Epoch != 0 {
			return r, nil
		}
		if wait != nil {
			select {
			case <-wait:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return holdfast.Route{}, fmt.Errorf("waiting for session %s to be resumed: %w", key, ctx.Err())
		}
	}
}

// lookResumed returns the route of a session that is ready, or what to wait for: the end of its
// boot or of its container, or the next boot.
func (m *Manager) lookResumed(key holdfast.SessionKey) (r holdfast.Route, wait, begun <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.sessions[key]
	switch {
	case e == nil || e.phase == failed: // a session that could not be resumed is suspended again
		return r, nil, m.begun
	case e.phase == booting:
		return r, e.settled, nil
	case e.phase == leaving:
		return r, e.gone, nil
	}
	return e.route, nil, nil
}

// awaitBegun waits for the boot of a session, for suspendedPoll at most.
func (m *Manager) awaitBegun(ctx context.Context, key holdfast.SessionKey, begun <-chan struct{}) {
	poll := time.NewTimer(suspendedPoll)
	defer poll.Stop()
	for {
		select {
		case <-begun:
		case <-poll.C:
			return
		case <-ctx.Done():
			return
		}
		m.mu.Lock()
		e := m.sessions[key]
		if e != nil && e.phase != failed {
			m.mu.Unlock()
			return
		}
		begun = m.begun
		m.mu.Unlock()
	}
}
