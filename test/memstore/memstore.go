// Package memstore keeps ownership in memory, for tests. It uses package time, so the
// fake time of testing/synctest works. It can lose its history and simulate failures.
package memstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Store is a store.Store in memory. Time is package time's. Its only goroutines are
// those of Watch, which end with their contexts.
type Store struct {
	history int
	lists   store.Lists
	past    store.Past

	mu       sync.Mutex
	revision holdfast.Revision
	nextID   store.LeaseID
	leases   map[store.LeaseID]*lease
	sessions map[holdfast.SessionKey]record
	nodes    map[holdfast.NodeID]nodeRecord
	notes    map[string]noteRecord
	events   []store.Event     // the history, oldest first
	gone     holdfast.Revision // events up to here have left the history
	fault    fault
	changed  chan struct{} // closed and replaced at every change
}

var _ store.Store = (*Store)(nil)

type record struct {
	owner holdfast.Owner
	lease store.LeaseID
}

type nodeRecord struct {
	node  holdfast.Node
	lease store.LeaseID
}

// New returns an empty store that keeps its last history events (at least 1) for
// watchers. A watcher that is further behind gets the difference to a list.
func New(history int) *Store {
	return &Store{
		history:  max(history, 1),
		revision: 1,
		leases:   map[store.LeaseID]*lease{},
		sessions: map[holdfast.SessionKey]record{},
		nodes:    map[holdfast.NodeID]nodeRecord{},
		notes:    map[string]noteRecord{},
		changed:  make(chan struct{}),
	}
}

// PutNode writes a node's record.
func (s *Store) PutNode(ctx context.Context, n holdfast.Node, id store.LeaseID) error {
	unlock, err := s.enter(ctx)
	if err != nil {
		return fmt.Errorf("put node %s: %w", n.ID, err)
	}
	defer unlock()
	if there, ok := s.nodes[n.ID]; ok && there.lease != id {
		return fmt.Errorf("put node %s: %w", n.ID, store.ErrNodeTaken)
	}
	if s.leases[id] == nil {
		return fmt.Errorf("put node %s: %w", n.ID, store.ErrLeaseGone)
	}
	s.revision++
	s.nodes[n.ID] = nodeRecord{n, id}
	return nil
}

// Node returns the record of a node whose lease lives.
func (s *Store) Node(ctx context.Context, id holdfast.NodeID) (holdfast.Node, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return holdfast.Node{}, fmt.Errorf("get node %s: %w", id, err)
	}
	defer unlock()
	n, ok := s.nodes[id]
	if !ok {
		return holdfast.Node{}, fmt.Errorf("get node %s: %w", id, holdfast.ErrNotFound)
	}
	return n.node, nil
}

// Nodes lists the nodes.
func (s *Store) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	defer unlock()
	nodes := make([]holdfast.Node, 0, len(s.nodes))
	for _, id := range slices.Sorted(maps.Keys(s.nodes)) {
		nodes = append(nodes, s.nodes[id].node)
	}
	return nodes, nil
}

// Claim creates a record.
func (s *Store) Claim(ctx context.Context, o holdfast.Owner, id store.LeaseID) (holdfast.Owner, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("claim %s: %w", o.Key, err)
	}
	defer unlock()
	if s.past.Seen().Restored {
		return holdfast.Owner{}, fmt.Errorf("claim %s: %w", o.Key, store.ErrRestored)
	}
	if r, ok := s.sessions[o.Key]; ok {
		return r.owner, fmt.Errorf("claim %s: %w", o.Key, store.ErrTaken)
	}
	if s.leases[id] == nil {
		return holdfast.Owner{}, fmt.Errorf("claim %s: %w", o.Key, store.ErrLeaseGone)
	}
	s.revision++
	o.Epoch, o.Revision = holdfast.Epoch(s.revision), s.revision
	s.put(record{o, id})
	name := store.SuspendedNotes + string(o.Key)
	o.SuspendNote = string(s.notes[name].note.Value)
	delete(s.notes, name)
	return o, nil
}

// Advance replaces a record.
func (s *Store) Advance(ctx context.Context, o holdfast.Owner) (holdfast.Owner, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("advance %s: %w", o.Key, err)
	}
	defer unlock()
	r, ok := s.sessions[o.Key]
	switch {
	case !ok || r.owner.Revision != o.Revision:
		return r.owner, fmt.Errorf("advance %s: %w", o.Key, store.ErrStale)
	case !r.owner.State.CanBecome(o.State):
		return r.owner, fmt.Errorf("advance %s from %s to %s: %w", o.Key, r.owner.State, o.State, store.ErrOrder)
	}
	s.revision++
	o.Node, o.Epoch, o.Revision = r.owner.Node, r.owner.Epoch, s.revision
	s.put(record{o, r.lease})
	return o, nil
}

// Release deletes records.
func (s *Store) Release(ctx context.Context, owners ...holdfast.Owner) ([]holdfast.SessionKey, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("release %d sessions: %w", len(owners), err)
	}
	defer unlock()
	var keys []holdfast.SessionKey
	for _, o := range owners {
		if r, ok := s.sessions[o.Key]; ok && r.owner.Revision == o.Revision {
			keys = append(keys, o.Key)
			s.revision++
			s.delete(o.Key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// Suspend deletes a record and leaves a note.
func (s *Store) Suspend(ctx context.Context, o holdfast.Owner, text string) error {
	unlock, err := s.enter(ctx)
	if err != nil {
		return fmt.Errorf("suspend %s: %w", o.Key, err)
	}
	defer unlock()
	name := store.SuspendedNotes + string(o.Key)
	if err := store.CheckNote(name, []byte(text)); err != nil {
		return err
	}
	if r, ok := s.sessions[o.Key]; !ok || r.owner.Revision != o.Revision {
		return fmt.Errorf("suspend %s: %w", o.Key, store.ErrStale)
	}
	s.revision++
	s.delete(o.Key)
	s.notes[name] = noteRecord{store.Note{Name: name, Value: []byte(text), Revision: s.revision}, 0}
	return nil
}

// Get returns a record.
func (s *Store) Get(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("get %s: %w", key, err)
	}
	defer unlock()
	r, ok := s.sessions[key]
	if !ok {
		return holdfast.Owner{}, fmt.Errorf("get %s: %w", key, holdfast.ErrNotFound)
	}
	return r.owner, nil
}

// Find returns records by key.
func (s *Store) Find(ctx context.Context, keys ...holdfast.SessionKey) ([]holdfast.Owner, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("find %d sessions: %w", len(keys), err)
	}
	defer unlock()
	return slices.DeleteFunc(s.owners(), func(o holdfast.Owner) bool { return !slices.Contains(keys, o.Key) }), nil
}

// List returns all records.
func (s *Store) List(ctx context.Context) ([]holdfast.Owner, holdfast.Revision, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("list sessions: %w", err)
	}
	defer unlock()
	owners := s.owners()
	s.lists.Add(owners, s.revision)
	return owners, s.revision, nil
}

// owners returns all records by key. s.mu is held.
func (s *Store) owners() []holdfast.Owner {
	owners := make([]holdfast.Owner, 0, len(s.sessions))
	for _, r := range s.sessions {
		owners = append(owners, r.owner)
	}
	slices.SortFunc(owners, func(a, b holdfast.Owner) int { return cmp.Compare(a.Key, b.Key) })
	return owners
}

// put and delete write at s.revision. s.mu is held.
func (s *Store) put(r record) {
	s.sessions[r.owner.Key] = r
	s.tell(store.Event{Key: r.owner.Key, Owner: r.owner, Revision: s.revision})
}

func (s *Store) delete(key holdfast.SessionKey) {
	delete(s.sessions, key)
	s.tell(store.Event{Key: key, Deleted: true, Revision: s.revision})
}

func (s *Store) tell(e store.Event) {
	s.events = append(s.events, e)
	if len(s.events) > s.history {
		s.gone = s.events[0].Revision
		s.events = slices.Delete(s.events, 0, 1)
	}
	s.wake()
}

// wake wakes all waiting calls. s.mu is held.
func (s *Store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// seconds rounds a TTL up to whole seconds, at least one, as etcd does.
func seconds(ttl time.Duration) time.Duration {
	return max((ttl + time.Second - 1).Truncate(time.Second), time.Second)
}
