package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// Acquire returns where the session is served. If the session does not run, Acquire
// boots it from the template; "" is the default one. A running session keeps its
// template. Until release is called (once), the session is not stopped for idleness.
// Acquire blocks until the session is ready or ctx is done. Errors: ctx's error, a
// *holdfast.ElsewhereError with the present record if another node owns the session, a
// *holdfast.BootError, holdfast.ErrNotFound for the template, holdfast.ErrDraining,
// holdfast.ErrBusy.
func (m *Manager) Acquire(ctx context.Context, key holdfast.SessionKey, template string) (r holdfast.Route, release func(), err error) {
	return m.AcquireIf(ctx, key, template, func() error { return nil })
}

// AcquireIf is Acquire with a condition: boot is called before a boot begins, with
// locks held, and its error is returned. It is not called for a request that joins
// the boot of another one.
func (m *Manager) AcquireIf(ctx context.Context, key holdfast.SessionKey, template string, boot func() error) (r holdfast.Route, release func(), err error) {
	by := holdfast.WakeReasonOf(ctx)
	e, err := m.acquire(ctx, key, func() (*entry, error) {
		if err := boot(); err != nil {
			return nil, err
		}
		return m.beginLocked(key, template, by)
	})
	return m.routed(e, by, err)
}

// Join is Acquire for a session that this node already has (booting, ready or
// leaving). It does not start a boot. It returns holdfast.ErrNotFound as soon as this
// node no longer has the session.
func (m *Manager) Join(ctx context.Context, key holdfast.SessionKey) (r holdfast.Route, release func(), err error) {
	e, err := m.acquire(ctx, key, func() (*entry, error) { return nil, notHere(key) })
	return m.routed(e, holdfast.WakeReasonOf(ctx), err)
}

// Ready is Acquire for a session that is ready here and never sleeps. It does not wait.
func (m *Manager) Ready(key holdfast.SessionKey) (r holdfast.Route, release func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.sessions[key]
	if e == nil || e.phase != ready || e.sleeper != nil {
		return holdfast.Route{}, nil, false
	}
	e.conns++
	e.useLocked()
	return e.route, sync.OnceFunc(func() { m.release(e) }), true
}

// Hold is Acquire for a session that is ready here at exactly this epoch. It does not
// wait. Error: holdfast.ErrNotFound.
func (m *Manager) Hold(key holdfast.SessionKey, epoch holdfast.Epoch) (r holdfast.Route, release func(), err error) {
	m.mu.Lock()
	e := m.sessions[key]
	if e == nil || e.phase != ready || e.owner.Epoch != epoch {
		m.mu.Unlock()
		return m.routed(nil, "", fmt.Errorf("session %s at epoch %d on this node: %w", key, epoch, holdfast.ErrNotFound))
	}
	e.conns++
	e.useLocked()
	m.mu.Unlock()
	return m.routed(e, holdfast.WokenByRequest, nil)
}

func notHere(key holdfast.SessionKey) error {
	return fmt.Errorf("session %s on this node: %w", key, holdfast.ErrNotFound)
}

// routed returns the route of an entry whose connection was counted. It wakes the session
// if that sleeps.
func (m *Manager) routed(e *entry, by holdfast.WakeReason, err error) (holdfast.Route, func(), error) {
	if err != nil {
		return holdfast.Route{}, nil, err
	}
	release, r := sync.OnceFunc(func() { m.release(e) }), e.route
	s := e.sleeper
	if s == nil {
		return r, release, nil
	}
	if err := s.wakeUsed(by); err != nil {
		release()
		return holdfast.Route{}, nil, err
	}
	a := &activity{s: s}
	if s.cfg.ByData {
		r.Activity = a
	}
	return r, func() { a.once.Do(s.unuse); release() }, nil
}

func (m *Manager) release(e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.conns--
	e.idleSince = time.Now()
}

// acquire waits until the session is ready and counts a connection to it. If there is
// no entry it calls begin with mu held.
func (m *Manager) acquire(ctx context.Context, key holdfast.SessionKey, begin func() (*entry, error)) (*entry, error) {
	for {
		e, wait, err := m.look(key, begin)
		if err != nil || wait == nil {
			return e, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for session %s: %w", key, ctx.Err())
		}
		if e == nil {
			continue // it was leaving; the reason does not matter to this caller
		}
		if err := m.bootError(e); err != nil && !errors.Is(err, engine.ErrInterrupted) {
			return nil, err
		}
	}
}

// look returns a ready entry with a connection counted, or a booting entry with the
// channel of its boot's end, or only the channel of the end of an entry that leaves.
func (m *Manager) look(key holdfast.SessionKey, begin func() (*entry, error)) (*entry, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.sessions[key]
	if e != nil && e.phase == failed {
		if time.Since(e.failedAt) < failureMemory {
			return nil, nil, e.err
		}
		m.dropLocked(e)
		e = m.sessions[key]
	}
	if e == nil {
		e, err := begin()
		if err != nil {
			return nil, nil, err
		}
		return e, e.settled, nil
	}
	switch e.phase {
	case booting:
		return e, e.settled, nil
	case leaving:
		return nil, e.gone, nil
	}
	e.conns++
	e.useLocked()
	return e, nil, nil
}

// bootError returns why the entry's boot failed, or nil.
func (m *Manager) bootError(e *entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return e.err
}

// Counts returns how many sessions this node has, including those that boot or leave,
// and how many of them boot or wait for a boot.
func (m *Manager) Counts() (sessions, boots int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.sessions {
		if e.phase == failed {
			continue
		}
		sessions++
		if e.phase == booting {
			boots++
		}
	}
	return sessions, boots
}

// Start boots the session if necessary and returns when it is ready. It is Acquire
// without a connection.
func (m *Manager) Start(ctx context.Context, key holdfast.SessionKey, template string) (Info, error) {
	_, release, err := m.Acquire(ctx, key, template)
	if err != nil {
		return Info{}, err
	}
	defer release()
	return m.Get(key)
}
