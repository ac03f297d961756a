package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// errKept ends the claim of an entry that only moves an image to this node. Requests for the
// session that came meanwhile try again.
var errKept = fmt.Errorf("the image of the suspended session is on this node now: %w", engine.ErrInterrupted)

// KeepSuspended moves the image of a suspended session from its node to this one. The session
// stays suspended: it is claimed for the transfer, and released with a note of the new node. If
// the transfer does not begin, the session stays as it was. If it breaks off, the memory is
// lost, and the note says so. Errors: holdfast.ErrBusy if this node has the session,
// holdfast.ErrNotFound if it is not suspended, holdfast.ErrNoMemory, and those of Acquire; ctx's
// error, in which case the work continues.
func (m *Manager) KeepSuspended(ctx context.Context, key holdfast.SessionKey, template string) error {
	m.mu.Lock()
	for e := m.sessions[key]; e != nil; e = m.sessions[key] {
		leaves := e.phase == leaving // an entry may also exist while an old record is looked up
		m.mu.Unlock()
		if !leaves {
			return fmt.Errorf("session %s is on this node: %w", key, holdfast.ErrBusy)
		}
		if err := m.await(ctx, e, e.gone); err != nil {
			return err
		}
		m.mu.Lock()
	}
	if m.deps.Mover == nil {
		m.mu.Unlock()
		return fmt.Errorf("session %s: %w", key, holdfast.ErrNoMemory)
	}
	e, err := m.beginEntryLocked(key, template, true)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if err := m.await(ctx, e, e.gone); err != nil {
		return err
	}
	if err := m.bootError(e); !errors.Is(err, errKept) {
		return err
	}
	m.timers.Set() // this node resumes it at its time
	return nil
}

// keep takes the image of the suspended session, and leaves the note for rollBack to write.
func (b *attempt) keep(ctx context.Context) error {
	if b.suspended == nil || b.suspended.From != nil {
		return fmt.Errorf("session %s is not suspended: %w", b.e.key, holdfast.ErrNotFound)
	}
	err := <-b.followsErr
	taken := err != nil && !errors.Is(err, holdfast.ErrStore) // a later state of the session existed
	next := *b.suspended
	if err == nil {
		next, taken, err = b.m.deps.Mover.Keep(ctx, b.owner, *b.suspended)
	}
	switch {
	case err == nil:
		b.m.log.Info("the image of a suspended session is on this node now", "session", b.e.key, "epoch", next.Epoch, "from", b.suspended.Node)
		b.suspended = &next
		b.keepNote()
		return errKept
	case taken:
		lost := *b.suspended
		lost.Lost, lost.Until = "its image did not reach node "+string(b.m.cfg.Node)+": "+reason(err), time.Now().UTC().Add(lostNoteLifetime)
		b.suspended = &lost
		b.keepNote()
		b.m.log.Warn("the memory of a suspended session is lost", "session", b.e.key, "epoch", b.suspended.Epoch, "err", err)
	}
	return fmt.Errorf("session %s: %w", b.e.key, err)
}
