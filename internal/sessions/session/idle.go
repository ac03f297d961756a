package session

import (
	"context"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// stopIdle stops or suspends, as the templates say, sessions that are not used for
// Config.IdleStop.
func (m *Manager) stopIdle(ctx context.Context) {
	every := min(max(m.cfg.IdleStop/10, 10*time.Millisecond), 5*time.Second)
	for {
		select {
		case <-tasks.Tick(every):
		case <-ctx.Done():
			return
		}
		m.noteCommands(ctx)
		m.suspendIdle()
		going := m.markIdle()
		for _, e := range going {
			m.log.Info("stopping an idle session", "session", e.key, "idle", m.cfg.IdleStop)
		}
		m.announce(ctx, going...)
		m.end(ctx, going)
	}
}

// idleLocked reports whether the session has had no connection and no command for
// Config.IdleStop. A replica of a group is never idle.
func (m *Manager) idleLocked(e *entry) bool {
	return e.phase == ready && e.template.Replicas == 0 && e.conns == 0 && e.execs == 0 && !e.detached && time.Since(e.idleSince) >= m.cfg.IdleStop
}

// Use counts a command in the container as a use of the session until release is called
// (once), and wakes the session. A detached command that was started meanwhile counts
// until its end. Errors: holdfast.ErrNotFound if the session is not ready here;
// holdfast.ErrEngine.
func (m *Manager) Use(key holdfast.SessionKey, by holdfast.WakeReason) (release func(), err error) {
	m.mu.Lock()
	e := m.sessions[key]
	if e == nil || e.phase != ready {
		m.mu.Unlock()
		return nil, notHere(key)
	}
	e.execs++
	s := e.useLocked()
	m.mu.Unlock()
	ended := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		e.execs--
		e.idleSince, e.detached = time.Now(), m.deps.Commands != nil
	}
	if s == nil {
		return sync.OnceFunc(ended), nil
	}
	if err := s.wakeUsed(by); err != nil {
		ended()
		return nil, err
	}
	return sync.OnceFunc(func() { s.unuse(); ended() }), nil
}

// noteCommands counts detached commands as uses of their sessions. If the commands of a
// session are not known, the session counts as used.
func (m *Manager) noteCommands(ctx context.Context) {
	since := map[*entry]time.Time{}
	m.mu.Lock()
	for _, e := range m.sessions {
		if e.phase == ready && e.detached {
			since[e] = e.idleSince
		}
	}
	m.mu.Unlock()
	for e, before := range since {
		last, running, err := m.deps.Commands(ctx, e.key)
		if err != nil {
			m.log.Warn("sessions with detached commands are not stopped for idleness now (will retry)", "session", e.key, "err", err)
			return
		}
		m.mu.Lock()
		if e.execs == 0 && e.idleSince.Equal(before) { // otherwise one may have been started meanwhile
			e.detached = running
			if last.After(before) {
				e.idleSince = last
			}
		}
		m.mu.Unlock()
	}
}

// markIdle marks the idle sessions that are to be stopped, so that no client can
// connect between the check and the end.
func (m *Manager) markIdle() []*entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	var idle []*entry
	for _, e := range m.sessions {
		if !e.template.SuspendIdle && m.idleLocked(e) {
			idle = append(idle, e)
		}
	}
	return m.markLocked(cause{reason: holdfast.EndIdle, by: holdfast.ByIdleStop}, idle...)
}
