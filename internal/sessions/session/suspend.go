package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/move"
)

const (
	// suspendTime bounds the saving of one session.
	suspendTime = 5 * time.Minute
	// lastSuspend is the time that remains for a save when the agent ends.
	lastSuspend = 10 * time.Second
	// suspendsAtOnce is how many idle sessions are suspended concurrently.
	suspendsAtOnce = 2
)

// Suspend saves the session's memory for its next epoch, sees its container dead and
// releases the session. The next connect restores it. Suspend closes existing
// connections like Stop, and waits for a booting session. If the save fails, the
// session has ended without its memory, and the error says so. Errors:
// holdfast.ErrNotFound; holdfast.ErrNoMemory if the save was not attempted and the
// session continues; ctx's error, in which case the work continues.
func (m *Manager) Suspend(ctx context.Context, key holdfast.SessionKey) (holdfast.SuspendReport, error) {
	_, release, err := m.Join(ctx, key)
	if err != nil {
		return holdfast.SuspendReport{}, err
	}
	release()
	begun := time.Now()
	m.mu.Lock()
	e := m.sessions[key]
	if e == nil || e.phase != ready {
		m.mu.Unlock()
		return holdfast.SuspendReport{}, notHere(key)
	}
	m.mu.Unlock()
	d, release, err := m.reserve(e)
	if err != nil {
		return holdfast.SuspendReport{}, fmt.Errorf("session %s: %w", key, err)
	}
	m.mu.Lock()
	if e.sleeper != nil {
		e.sleeper.suspending.Store(true) // data waits for the next server
	}
	going := m.markLocked(cause{reason: holdfast.EndSuspended, by: holdfast.ByUser}, e)
	m.mu.Unlock()
	if len(going) == 0 {
		release()
		return holdfast.SuspendReport{}, notHere(key) // another goroutine ends it
	}
	var r holdfast.SuspendReport // valid once done has received
	done := make(chan error, 1)
	started := m.tasks.Go(func(life context.Context) {
		defer release()
		var err error
		r, err = m.suspend(life, e, d)
		done <- err
	})
	if !started {
		release()
		return holdfast.SuspendReport{}, fmt.Errorf("session %s: %w", key, errNotRunning)
	}
	select {
	case err := <-done:
		r.Took = holdfast.Millis(time.Since(begun))
		return r, err
	case <-ctx.Done():
		return holdfast.SuspendReport{}, fmt.Errorf("waiting for session %s to be suspended: %w", key, ctx.Err())
	}
}

// departingLocked returns the session in the form that the Mover needs.
func (e *entry) departingLocked() move.Departing {
	return move.Departing{Owner: e.owner, Target: e.target, Priority: e.template.Priority, Connected: e.conns > 0}
}

// reserve makes the Mover reserve space for a session's memory, or returns why the
// memory cannot be kept.
func (m *Manager) reserve(e *entry) (d move.Departing, release func(), err error) {
	m.mu.Lock()
	d = e.departingLocked()
	m.mu.Unlock()
	switch {
	case !e.template.SaveMemory:
		return d, nil, holdfast.WithHint(fmt.Errorf("%w: template %s does not say handover: memory", holdfast.ErrNoMemory, e.template.Name), "see docs/moving.md for the requirements")
	case m.deps.Mover == nil:
		return d, nil, holdfast.WithHint(holdfast.ErrNoMemory, "the agent's log states at its start what is missing")
	}
	if d, release, err = m.deps.Mover.Reserve(d); err != nil {
		return d, nil, fmt.Errorf("%w: %w", holdfast.ErrNoMemory, err)
	}
	return d, release, nil
}

// suspend saves and ends an entry that is marked as leaving and for which space is
// reserved. life is the Manager's context.
func (m *Manager) suspend(life context.Context, e *entry, d move.Departing) (r holdfast.SuspendReport, err error) {
	m.announceSaving(life, e, holdfast.Leaving)
	m.mu.Lock()
	d.Owner = e.owner
	m.mu.Unlock()
	saving, cancel := context.WithTimeout(context.WithoutCancel(life), suspendTime)
	defer context.AfterFunc(life, func() { time.AfterFunc(lastSuspend, cancel) })()
	begun := time.Now()
	r.Suspended, err = m.deps.Mover.Suspend(saving, d)
	cancel()
	m.endSaving(e)
	m.deps.Metrics.suspends.WithLabelValues(outcomeOf(err)).Observe(time.Since(begun).Seconds())
	if err != nil {
		m.log.Warn("a session's memory is lost: it could not be suspended", "session", e.key, "epoch", d.Owner.Epoch, "err", err)
		m.mu.Lock()
		e.end.text = "its memory is lost: " + reason(err)
		m.mu.Unlock()
		err = fmt.Errorf("session %s has ended without its memory: %w", e.key, err)
	}
	killing, cancel := context.WithTimeout(context.WithoutCancel(life), killTimeout)
	report := m.deps.Killer.Kill(killing, targets([]*entry{e}))
	cancel()
	r.Left = report.Left
	dead := m.seenDead([]*entry{e}, report)
	if len(dead) == 0 { // the session stays owned until it is dead
		return r, err
	}
	if with, _ := m.splitBySnapshot(dead); len(with) > 0 {
		m.snap(life, e)
	}
	if err != nil {
		m.releaseUntilDone(life, dead)
		return r, err
	}
	if m.deps.Cloned != nil && m.deps.Cloned() {
		return r, fmt.Errorf("session %s: its record is another agent's: %w", e.key, ErrLeaseLost)
	}
	kept := false
	if !m.persist(life, "suspending a session", e.key, func(ctx context.Context) (err error) {
		kept, err = m.releaseSuspended(ctx, e, r.Suspended)
		return err
	}) {
		return r, fmt.Errorf("session %s: the store does not accept its suspension: %w", e.key, holdfast.ErrStore)
	}
	m.finish(e)
	if !kept {
		m.log.Warn("a session's memory is lost: it was released before it was suspended", "session", e.key, "epoch", d.Owner.Epoch)
		return r, fmt.Errorf("session %s has ended without its memory: its record was gone before: %w", e.key, holdfast.ErrStore)
	}
	m.log.Info("session suspended", "session", e.key, "epoch", d.Owner.Epoch, "bytes", r.Bytes, "took", time.Since(begun).Round(time.Millisecond))
	return r, nil
}

// releaseSuspended releases a dead session and stores the suspend note for its next
// claim. kept is false if the record is gone or belongs to another claim; then the
// image cannot be used.
func (m *Manager) releaseSuspended(ctx context.Context, e *entry, s holdfast.Suspended) (kept bool, err error) {
	m.mu.Lock()
	o := e.owner
	m.mu.Unlock()
	defer m.timers.Set()
	for {
		m.noteWake(&s, o)
		text, err := json.Marshal(s)
		if err == nil {
			err = m.deps.Store.Suspend(ctx, o, string(text))
		}
		if !errors.Is(err, store.ErrStale) {
			return err == nil, err
		}
		// The answer to this write, or to an earlier one, may have been lost.
		now, err := m.deps.Store.Get(ctx, o.Key)
		if errors.Is(err, holdfast.ErrNotFound) {
			r, err := move.FindSuspended(ctx, m.deps.Store, o.Key)
			if errors.Is(err, holdfast.ErrNotFound) {
				err = nil
			}
			return r.Epoch == s.Epoch && r.Lost == "", err
		}
		if err != nil {
			return false, err
		}
		if now.Epoch != o.Epoch || now.Node != o.Node || now.Revision == o.Revision {
			return false, nil
		}
		o = now
	}
}

// suspendIdle suspends idle sessions whose templates say so, a few at a time. A
// session is closed to new connections only when its turn has come. Until then it can
// be used and drained like any other.
func (m *Manager) suspendIdle() {
	for range cap(m.suspends) {
		select {
		case m.suspends <- struct{}{}:
		default:
			return
		}
		started := m.tasks.Go(func(life context.Context) {
			defer func() { <-m.suspends }()
			for life.Err() == nil {
				e := m.markOneIdle()
				if e == nil {
					return
				}
				m.suspendOrStop(life, e)
			}
		})
		if !started {
			<-m.suspends
			return
		}
	}
}

// markOneIdle marks one idle session that is to be suspended. It returns nil if there
// is none.
func (m *Manager) markOneIdle() *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.sessions {
		if e.template.SuspendIdle && m.idleLocked(e) {
			m.markLocked(cause{reason: holdfast.EndSuspended, by: holdfast.ByIdleStop}, e)
			return e
		}
	}
	return nil
}

// suspend suspends a session that is to sleep, unless it is used. If its memory cannot be kept,
// the session stays awake.
func (s *sleeper) suspend(ctx context.Context) {
	m := s.m
	select {
	case m.suspends <- struct{}{}:
		defer func() { <-m.suspends }()
	case <-ctx.Done():
		return
	}
	m.mu.Lock()
	e := m.sessions[s.key]
	if e == nil || e.sleeper != s || e.phase != ready {
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	d, release, err := m.reserve(e)
	if err != nil {
		m.log.Warn("a session cannot sleep now (will retry)", "session", s.key, "err", err)
		s.tryAfter(sleepAgain)
		return
	}
	defer release()
	if !s.markSuspending(e) {
		s.tryAfter(min(s.cfg.After, time.Second) / 10)
		return
	}
	m.log.Info("suspending a session that is not used", "session", s.key, "after", s.cfg.After)
	_, _ = m.suspend(ctx, e, d) // suspend logs the error
}

// markSuspending closes the session to its connections, and returns true, if it is still not
// used. A use is stored before suspending is read, and here the uses are read after suspending
// was set. So each use is seen here, or it sees that the session is being suspended.
func (s *sleeper) markSuspending(e *entry) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.suspending.Store(true)
	if !s.idle() || len(s.m.markLocked(cause{reason: holdfast.EndSuspended, by: holdfast.ByIdleStop}, e)) == 0 {
		s.suspending.Store(false)
		return false
	}
	return true
}

// suspendOrStop ends a session that is marked as leaving.
func (m *Manager) suspendOrStop(life context.Context, e *entry) {
	d, release, err := m.reserve(e)
	if err != nil {
		m.log.Warn("an idle session is stopped, and its memory lost", "session", e.key, "err", err)
		m.mu.Lock()
		e.end.cause = cause{holdfast.EndIdle, holdfast.ByIdleStop, "its memory is lost: " + err.Error()}
		m.mu.Unlock()
		m.announce(life, e)
		m.end(life, []*entry{e})
		return
	}
	m.log.Info("suspending an idle session", "session", e.key, "idle", m.cfg.IdleStop)
	defer release()
	_, _ = m.suspend(life, e, d) // suspend logs the error
}
