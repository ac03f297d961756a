package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"holdfast"
)

// Acquire returns where the session is served, booting it from the template
// ("" is the default one) if it is not, and keeps it from being stopped for
// idleness until release is called, once. It blocks until the session is ready
// or ctx is done. A template that is another than a running session has is
// ignored. Errors: ctx's, a *holdfast.ElsewhereError with the present record
// when another node has it, a *holdfast.BootError, holdfast.ErrNotFound of the
// template, holdfast.ErrDraining, holdfast.ErrBusy.
func (m *Manager) Acquire(ctx context.Context, key holdfast.SessionKey, template string) (r holdfast.Route, release func(), err error) {
	return m.routed(m.acquire(ctx, key, func() (*entry, error) { return m.beginLocked(key, template) }))
}

// Join is Acquire for a session that this node has already, be it booting, ready
// or leaving; it begins nothing. holdfast.ErrNotFound as soon as this node has
// it no longer.
func (m *Manager) Join(ctx context.Context, key holdfast.SessionKey) (r holdfast.Route, release func(), err error) {
	return m.routed(m.acquire(ctx, key, func() (*entry, error) { return nil, notHere(key) }))
}

// Hold is Acquire for a session that is ready here at exactly this epoch; it
// waits for nothing. holdfast.ErrNotFound.
func (m *Manager) Hold(key holdfast.SessionKey, epoch holdfast.Epoch) (r holdfast.Route, release func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.sessions[key]
	if e == nil || e.phase != ready || e.owner.Epoch != epoch {
		return m.routed(nil, fmt.Errorf("session %s at epoch %d on this node: %w", key, epoch, holdfast.ErrNotFound))
	}
	e.conns++
	return m.routed(e, nil)
}

func notHere(key holdfast.SessionKey) error {
	return fmt.Errorf("session %s on this node: %w", key, holdfast.ErrNotFound)
}

// routed makes the answer of an entry with a connection counted.
func (m *Manager) routed(e *entry, err error) (holdfast.Route, func(), error) {
	if err != nil {
		return holdfast.Route{}, nil, err
	}
	var once sync.Once
	return e.route, func() { once.Do(func() { m.release(e) }) }, nil
}

func (m *Manager) release(e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.conns--
	e.idleSince = time.Now()
}

// acquire waits until the session is ready and counts a connection to it. begin
// is called, with mu held, where there is none.
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
			continue // it was leaving: why is none of this caller's business
		}
		if err := m.bootError(e); err != nil {
			return nil, err
		}
	}
}

// look returns a ready entry with a connection counted, or one whose boot to
// wait for, or just the end to wait for of one that leaves.
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
	return e, nil, nil
}

// bootError is why the entry's boot failed, nil if it did not.
func (m *Manager) bootError(e *entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return e.err
}

// Counts says how many sessions this node has, those that boot or leave
// included, and how many of them boot or wait for it.
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

// Start boots the session if it is not ready and returns when it is, like
// Acquire without staying connected.
func (m *Manager) Start(ctx context.Context, key holdfast.SessionKey, template string) (Info, error) {
	_, release, err := m.Acquire(ctx, key, template)
	if err != nil {
		return Info{}, err
	}
	defer release()
	return m.Get(key)
}
