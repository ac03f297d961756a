package embedded

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"holdfast"
	"holdfast/internal/platform/store"
)

// PutNode writes a node's record.
func (s *Store) PutNode(ctx context.Context, n holdfast.Node, id store.LeaseID) error {
	_, err := do(ctx, s, fmt.Sprintf("put node %s", n.ID), func(st *state) (struct{}, error) {
		if there, ok := st.nodes[n.ID]; ok && there.Lease != id {
			return struct{}{}, store.ErrNodeTaken
		}
		if st.leases[id] == nil {
			return struct{}{}, store.ErrLeaseGone
		}
		if err := s.disk.Room(); err != nil {
			return struct{}{}, err
		}
		r := nodeRecord{n, id}
		if err := st.set(nodeBucket, string(n.ID), r); err != nil {
			return struct{}{}, err
		}
		st.Revision++
		st.nodes[n.ID] = r
		return struct{}{}, nil
	})
	return err
}

// Node returns the record of a node whose lease lives.
func (s *Store) Node(ctx context.Context, id holdfast.NodeID) (holdfast.Node, error) {
	return do(ctx, s, fmt.Sprintf("get node %s", id), func(st *state) (holdfast.Node, error) {
		r, ok := st.nodes[id]
		if !ok {
			return holdfast.Node{}, holdfast.ErrNotFound
		}
		return r.Node, nil
	})
}

// Nodes lists the nodes.
func (s *Store) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	return do(ctx, s, "list nodes", func(st *state) ([]holdfast.Node, error) {
		nodes := make([]holdfast.Node, 0, len(st.nodes))
		for _, id := range slices.Sorted(maps.Keys(st.nodes)) {
			nodes = append(nodes, st.nodes[id].Node)
		}
		return nodes, nil
	})
}

// Claim creates a record.
func (s *Store) Claim(ctx context.Context, o holdfast.Owner, id store.LeaseID) (holdfast.Owner, error) {
	return do(ctx, s, fmt.Sprintf("claim %s", o.Key), func(st *state) (holdfast.Owner, error) {
		if s.past.Seen().Restored {
			return holdfast.Owner{}, store.ErrRestored
		}
		if r, ok := st.sessions[o.Key]; ok {
			return r.Owner, store.ErrTaken
		}
		if st.leases[id] == nil {
			return holdfast.Owner{}, store.ErrLeaseGone
		}
		if err := s.disk.Room(); err != nil {
			return holdfast.Owner{}, err
		}
		st.Revision++
		next := o
		next.Epoch, next.Revision = holdfast.Epoch(st.Revision), st.Revision
		if err := st.put(record{next, id}); err != nil {
			return holdfast.Owner{}, err
		}
		name := store.SuspendedNotes + string(o.Key)
		if note, ok := st.notes[name]; ok {
			next.SuspendNote = string(note.Note.Value)
			st.dropNote(name)
		}
		return next, nil
	})
}

// Advance replaces a record.
func (s *Store) Advance(ctx context.Context, o holdfast.Owner) (holdfast.Owner, error) {
	return do(ctx, s, fmt.Sprintf("advance %s", o.Key), func(st *state) (holdfast.Owner, error) {
		r, ok := st.sessions[o.Key]
		switch {
		case !ok || r.Owner.Revision != o.Revision:
			return r.Owner, store.ErrStale
		case !r.Owner.State.CanBecome(o.State):
			return r.Owner, fmt.Errorf("from %s to %s: %w", r.Owner.State, o.State, store.ErrOrder)
		}
		if err := s.disk.Room(); err != nil {
			return r.Owner, err
		}
		st.Revision++
		next := o
		next.Node, next.Epoch, next.Revision = r.Owner.Node, r.Owner.Epoch, st.Revision
		if err := st.put(record{next, r.Lease}); err != nil {
			return r.Owner, err
		}
		return next, nil
	})
}

// Release deletes records.
func (s *Store) Release(ctx context.Context, owners ...holdfast.Owner) ([]holdfast.SessionKey, error) {
	return do(ctx, s, fmt.Sprintf("release %d sessions", len(owners)), func(st *state) (keys []holdfast.SessionKey, err error) {
		for _, o := range owners {
			if r, ok := st.sessions[o.Key]; ok && r.Owner.Revision == o.Revision {
				st.Revision++
				st.delete(o.Key)
				keys = append(keys, o.Key)
			}
		}
		slices.Sort(keys)
		return keys, nil
	})
}

// Suspend deletes a record and leaves a note.
func (s *Store) Suspend(ctx context.Context, o holdfast.Owner, text string) error {
	n := store.Note{Name: store.SuspendedNotes + string(o.Key), Value: []byte(text)}
	if err := store.CheckNote(n.Name, n.Value); err != nil {
		return err
	}
	_, err := do(ctx, s, fmt.Sprintf("suspend %s", o.Key), func(st *state) (struct{}, error) {
		if r, ok := st.sessions[o.Key]; !ok || r.Owner.Revision != o.Revision {
			return struct{}{}, store.ErrStale
		}
		if err := s.disk.Room(); err != nil {
			return struct{}{}, err
		}
		if _, err := st.putNote(n, 0); err != nil {
			return struct{}{}, err
		}
		st.delete(o.Key)
		return struct{}{}, nil
	})
	return err
}

// Get returns a record.
func (s *Store) Get(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	return do(ctx, s, fmt.Sprintf("get %s", key), func(st *state) (holdfast.Owner, error) {
		r, ok := st.sessions[key]
		if !ok {
			return holdfast.Owner{}, holdfast.ErrNotFound
		}
		return r.Owner, nil
	})
}

// Find returns records by key.
func (s *Store) Find(ctx context.Context, keys ...holdfast.SessionKey) ([]holdfast.Owner, error) {
	return do(ctx, s, fmt.Sprintf("find %d sessions", len(keys)), func(st *state) ([]holdfast.Owner, error) {
		found := map[holdfast.SessionKey]holdfast.Owner{}
		for _, key := range keys {
			if r, ok := st.sessions[key]; ok {
				found[key] = r.Owner
			}
		}
		owners := make([]holdfast.Owner, 0, len(found))
		for _, key := range slices.Sorted(maps.Keys(found)) {
			owners = append(owners, found[key])
		}
		return owners, nil
	})
}

// List returns all records.
func (s *Store) List(ctx context.Context) ([]holdfast.Owner, holdfast.Revision, error) {
	list, err := do(ctx, s, "list sessions", func(st *state) (store.Event, error) {
		owners := st.owners()
		s.lists.Add(owners, st.Revision)
		return store.Event{Owners: owners, Revision: st.Revision}, nil
	})
	return list.Owners, list.Revision, err
}

// Follows reads the key's history between both claims.
func (s *Store) Follows(ctx context.Context, key holdfast.SessionKey, before, next holdfast.Epoch) (bool, error) {
	return do(ctx, s, fmt.Sprintf("read the history of %s", key), func(st *state) (bool, error) {
		if before <= 0 || next <= before {
			return false, nil
		}
		if holdfast.Epoch(st.Gone) >= before {
			return false, store.ErrForgotten
		}
		seen := false
		for _, e := range st.history {
			switch {
			case e.Key != key || e.Deleted || e.Owner.Epoch < before:
			case e.Owner.Epoch == before:
				seen = true
			default:
				return seen && e.Owner.Epoch == next, nil
			}
		}
		return false, nil
	})
}
