package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/move"
)

// Schedule has the times at which sessions of a template wake. A cron.Schedule is one.
type Schedule interface {
	// Next returns the first time after the given one, which is in UTC; the zero time: none.
	Next(after time.Time) time.Time
}

const (
	// timerTick is how exactly sessions wake at their time.
	timerTick = time.Second
	// relist is how often the suspended sessions are looked through. Those that another
	// agent of this node has suspended wake this much late, at most.
	relist = time.Minute
	// timerRewrites is how often a time is written again after another write of the record.
	timerRewrites = 20
)

// nextWake returns the first time of the template's schedules after now.
func (t Template) nextWake(now time.Time) (next time.Time) {
	for _, s := range t.Wake {
		next = holdfast.FirstTime(next, s.Next(now.UTC()))
	}
	return next
}

// SetWake sets the time at which a session of this node, which may be asleep or suspended,
// wakes; the zero time removes it. It replaces an earlier one. Errors: holdfast.ErrNotFound,
// holdfast.ErrStore.
func (m *Manager) SetWake(ctx context.Context, key holdfast.SessionKey, at time.Time) error {
	at = at.UTC()
	e, err := m.acquire(ctx, key, func() (*entry, error) { return nil, notHere(key) })
	if errors.Is(err, holdfast.ErrNotFound) {
		return m.setSuspendedWake(ctx, key, at)
	}
	if err != nil {
		return err
	}
	defer m.release(e)
	if s := e.sleeper; s != nil {
		defer s.uses.Add(-1)
	}
	for range timerRewrites {
		err = m.rewrite(ctx, e, func(o *holdfast.Owner) { o.WakeAt = at })
		if !errors.Is(err, store.ErrStale) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("setting the time at which session %s wakes: %w", key, err)
	}
	return nil
}

// setSuspendedWake changes the note of a suspended session.
func (m *Manager) setSuspendedWake(ctx context.Context, key holdfast.SessionKey, at time.Time) error {
	_, err := store.ChangeNote(ctx, m.deps.Store, store.SuspendedNotes+string(key), func(s *holdfast.Suspended) error {
		if s.Lost != "" || s.From != nil {
			return holdfast.ErrNotFound
		}
		s.WakeAt = at
		return nil
	})
	if errors.Is(err, holdfast.ErrNotFound) {
		return notHere(key)
	}
	if err != nil {
		return fmt.Errorf("setting the time at which session %s wakes: %w", key, err)
	}
	m.timers.Set()
	return nil
}

// wakeByTime wakes the sessions with a container at their times, until ctx is done.
func (m *Manager) wakeByTime(ctx context.Context) {
	_ = tasks.EveryTick(ctx, timerTick, func() { m.wakeDue(time.Now()) })
}

// resumeByTime resumes suspended sessions at their times, until ctx is done.
func (m *Manager) resumeByTime(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-next.C:
		case <-m.timers:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		next.Reset(max(m.resumeDue(ctx, now).Sub(now), timerTick))
	}
}

// wakeDue wakes the sessions with a container whose time has come. Each is used at that time,
// also if it was awake.
func (m *Manager) wakeDue(now time.Time) {
	var due []*entry
	m.mu.Lock()
	for _, e := range m.sessions {
		at := holdfast.FirstTime(e.owner.WakeAt, e.cron)
		if e.phase != ready || at.IsZero() || now.Before(at) {
			continue
		}
		due = append(due, e)
		e.idleSince = now
		if !e.cron.After(now) {
			e.cron = e.template.nextWake(now)
		}
		if set := e.owner.WakeAt; !set.IsZero() && !set.After(now) {
			e.owner.WakeAt = time.Time{}
			// If this write fails, the next agent wakes the session once more.
			m.tasks.Go(func(ctx context.Context) { _ = m.rewrite(ctx, e, func(*holdfast.Owner) {}) })
		}
	}
	m.mu.Unlock()
	for _, e := range due {
		m.log.Info("a session's time to wake has come", "session", e.key)
		if s := e.sleeper; s != nil {
			s.used.Store(now.UnixNano())
			if err := s.wake(holdfast.WokenByTimer); err != nil {
				m.log.Error("a session cannot be woken at its time", "session", e.key, "err", err)
			}
		}
	}
}

// resumeDue resumes the suspended sessions whose images this node has and whose time has
// come. It returns when to call it again.
func (m *Manager) resumeDue(ctx context.Context, now time.Time) (next time.Time) {
	all, err := move.ListSuspended(ctx, m.deps.Store)
	if err != nil {
		m.log.Debug("looking through the suspended sessions (will be tried again)", "err", err)
		return now
	}
	next = now.Add(relist)
	for _, r := range all {
		at := r.Wakes()
		if r.Node != m.cfg.Node || r.Lost != "" || r.From != nil || at.IsZero() {
			continue
		}
		if now.Before(at) {
			next = holdfast.FirstTime(next, at)
			continue
		}
		if _, boots := m.Counts(); boots >= m.cfg.Boots {
			return now
		}
		if err := m.resumeOne(r.Suspended); err != nil {
			m.log.Warn("a suspended session cannot be resumed at its time (will be tried again)", "session", r.Key, "err", err)
		}
	}
	return next
}

// resumeOne begins the boot of a suspended session, unless this node has the session by now. It
// does not wait: after a wait the session could have ended, and would start anew.
func (m *Manager) resumeOne(s holdfast.Suspended) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sessions[s.Key] != nil {
		return nil
	}
	_, err := m.beginLocked(s.Key, s.Template, holdfast.WokenByTimer)
	return err
}

// noteWake puts the times at which a session wakes into the note of its suspension.
func (m *Manager) noteWake(s *holdfast.Suspended, o holdfast.Owner) {
	s.WakeAt = o.WakeAt
	if t, err := m.template(o.Template); err == nil {
		s.WakeCron = t.nextWake(s.TakenAt)
	}
}

// resumed takes over the times of a suspended session that continues, and notes what woke it.
func (b *attempt) resumed(left holdfast.Suspended) {
	if left.WakeAt.After(time.Now()) {
		b.owner.WakeAt = left.WakeAt // written with the next state
	}
	b.m.mu.Lock()
	by := b.e.begunBy
	b.e.wokenBy = by
	b.m.mu.Unlock()
	b.m.deps.Metrics.wakes.WithLabelValues(string(by)).Inc()
}
