package memstore

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/platform/store"
)

type lease struct {
	ttl     time.Duration
	expires time.Time
	timer   *time.Timer
}

// Grant makes a lease. The TTL is rounded up to whole seconds.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("grant a lease: %w", err)
	}
	defer unlock()
	ttl = seconds(ttl)
	s.nextID++
	id := s.nextID
	s.leases[id] = &lease{
		ttl:     ttl,
		expires: time.Now().Add(ttl),
		timer:   time.AfterFunc(ttl, func() { s.expire(id) }),
	}
	return id, ttl, nil
}

// KeepAlive renews a lease.
func (s *Store) KeepAlive(ctx context.Context, id store.LeaseID) error {
	unlock, err := s.enter(ctx)
	if err != nil {
		return fmt.Errorf("renew lease %x: %w", int64(id), err)
	}
	defer unlock()
	l := s.leases[id]
	if l == nil || !time.Now().Before(l.expires) {
		s.end(id)
		return fmt.Errorf("renew lease %x: %w", int64(id), store.ErrLeaseGone)
	}
	l.expires = time.Now().Add(l.ttl)
	l.timer.Reset(l.ttl)
	return nil
}

// Revoke ends a lease.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	unlock, err := s.enter(ctx)
	if err != nil {
		return fmt.Errorf("revoke lease %x: %w", int64(id), err)
	}
	defer unlock()
	s.end(id)
	return nil
}

// expire ends the lease if its TTL has passed: a renewal may have come before the
// timer.
func (s *Store) expire(id store.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[id]; l != nil && !time.Now().Before(l.expires) {
		s.end(id)
	}
}

// end deletes the lease with all records under it, in one revision. s.mu is held.
func (s *Store) end(id store.LeaseID) {
	l := s.leases[id]
	if l == nil {
		return
	}
	l.timer.Stop()
	delete(s.leases, id)
	s.revision++
	for node, r := range s.nodes {
		if r.lease == id {
			delete(s.nodes, node)
		}
	}
	for name, r := range s.notes {
		if r.lease == id {
			delete(s.notes, name)
		}
	}
	for _, o := range s.owners() {
		if s.sessions[o.Key].lease == id {
			s.delete(o.Key)
		}
	}
}
