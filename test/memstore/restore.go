package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"holdfast/internal/platform/store"
)

// Backup returns a function that sets the store back to this moment, like a restore of
// etcd from a backup: the revision goes back too, and the leases of the backup have
// their full TTL again.
func (s *Store) Backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	revision, gone := s.revision, s.gone
	sessions, nodes, notes := maps.Clone(s.sessions), maps.Clone(s.nodes), maps.Clone(s.notes)
	events := slices.Clone(s.events)
	ttls := map[store.LeaseID]time.Duration{}
	for id, l := range s.leases {
		ttls[id] = l.ttl
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.leases {
			l.timer.Stop()
		}
		s.revision, s.gone, s.events = revision, gone, slices.Clone(events)
		s.sessions, s.nodes, s.notes = maps.Clone(sessions), maps.Clone(nodes), maps.Clone(notes)
		s.leases = map[store.LeaseID]*lease{}
		for id, ttl := range ttls {
			s.leases[id] = &lease{ttl: ttl, expires: time.Now().Add(ttl), timer: time.AfterFunc(ttl, func() { s.expire(id) })}
		}
		s.wake()
	}
}

// notice follows the revision. s.mu is held.
func (s *Store) notice() {
	s.past.Answered(s.past.Mark(), 1, s.revision, 0)
	if s.past.Seen().Restored {
		s.wake()
	}
}

// Seen returns what was seen.
func (s *Store) Seen() store.Seen { return s.past.Seen() }

// Remember adds what an earlier process has seen.
func (s *Store) Remember(seen store.Seen) {
	s.past.Remember(seen)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake()
}

// RaiseEpochs raises the revision, like etcdutl's --bump-revision.
func (s *Store) RaiseEpochs(ctx context.Context) error {
	unlock, err := s.enter(ctx)
	if err != nil {
		return fmt.Errorf("raise the epochs: %w", err)
	}
	defer unlock()
	s.revision += s.past.Seen().Base(0, s.revision)
	return nil
}

// Resume accepts claims again.
func (s *Store) Resume(ctx context.Context) error {
	if err := s.RaiseEpochs(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	return s.past.Resume(func() { s.lists.Forget() })
}

// all returns all records in one event, if the reader needs them.
func (s *Store) all(r *store.Reader) (e store.Event, turn int, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn, again, _ = s.past.Turn(r)
	if !again || s.fault != none {
		return e, turn, false
	}
	s.lists.Forget()
	return store.Event{Restored: true, Owners: s.owners(), Revision: s.revision}, turn, true
}
