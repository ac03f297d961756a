package fork

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/move"
	"holdfast/test/memstore"
)

// stage is a Forker whose sessions have records and no containers.
type stage struct {
	*Forker
	store *memstore.Store
	lease store.LeaseID
	// before is called before a claim; nil: nothing is.
	before func(key holdfast.SessionKey) error
	dumb   bool // the claim is one of an agent without forks
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{store: memstore.New(1)}
	var err error
	if s.lease, _, err = s.store.Grant(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	s.Forker = &Forker{Store: s.store, Keep: time.Hour, Mover: &move.Mover{}, Start: s.start,
		Copy: func(_ context.Context, key holdfast.SessionKey, c holdfast.MemorySnapshot) (holdfast.MemorySnapshot, error) {
			c.Key, c.Epoch, c.Node = key, 1, "n1"
			return c, nil
		}}
	return s
}

func (s *stage) start(ctx context.Context, key holdfast.SessionKey, _ string) (holdfast.Owner, error) {
	if s.before != nil {
		if err := s.before(key); err != nil {
			return holdfast.Owner{}, err
		}
	}
	o, err := s.store.Claim(ctx, holdfast.Owner{Key: key, Node: "n1", State: holdfast.Claimed}, s.lease)
	var left holdfast.Suspended
	if err != nil || s.dumb || json.Unmarshal([]byte(o.SuspendNote), &left) != nil || left.From == nil {
		return o, err
	}
	o.Parent, o.Snapshot = left.From.Key, left.From.Name
	return o, nil
}

// left returns the names of the notes for claims.
func (s *stage) left(t *testing.T) (names []string) {
	t.Helper()
	notes, err := s.store.ListNotes(t.Context(), store.SuspendedNotes)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range notes {
		names = append(names, n.Name)
	}
	return names
}

// A fork starts each child that it can, from the one copy, and leaves no note.
func TestForkInPart(t *testing.T) {
	s := newStage(t)
	s.before = func(key holdfast.SessionKey) error {
		if key == "b" {
			return holdfast.ErrDraining
		}
		return nil
	}
	r, err := s.Fork(t.Context(), "parent", []holdfast.SessionKey{"a", "b", "c"})
	if err != nil || r.Key != "parent" || len(r.Children) != 3 || r.Failed() != 1 || r.Children[1].Key != "b" || r.Children[1].Error == "" || r.Children[2].Epoch == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if left := s.left(t); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
	// A child that exists: nothing is copied or started.
	s.Copy = nil
	if _, err := s.Fork(t.Context(), "parent", []holdfast.SessionKey{"d", "a"}); !errors.Is(err, holdfast.ErrExists) {
		t.Error(err)
	}
}

// A start from a snapshot is refused for a session that exists, at whatever moment it was
// claimed, and never claims another node's session.
func TestStartFromSnapshot(t *testing.T) {
	s := newStage(t)
	if _, err := s.StartFrom(t.Context(), "a", "v1"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Error(err)
	}
	if c, err := s.TakeSnapshot(t.Context(), "parent", "v1", 0); err != nil || c.Name != "v1" || c.Until.Before(time.Now().Add(50*time.Minute)) {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := s.TakeSnapshot(t.Context(), "parent", "v1", 0); !errors.Is(err, holdfast.ErrExists) {
		t.Error(err)
	}
	for range 2 { // a snapshot may be used often
		o, err := s.StartFrom(t.Context(), "a", "v1")
		if err != nil || o.Parent != "parent" || o.Snapshot != "v1" {
			t.Errorf("%+v, %v", o, err)
		}
		if _, err := s.StartFrom(t.Context(), "a", "v1"); !errors.Is(err, holdfast.ErrExists) {
			t.Errorf("a session that runs: %v", err)
		}
		if _, err := s.store.Release(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	// It is suspended: its own memory stays.
	if err := s.store.PutNote(t.Context(), store.SuspendedNotes+"b", []byte(`{"key":"b"}`), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartFrom(t.Context(), "b", "v1"); !errors.Is(err, holdfast.ErrExists) || len(s.left(t)) != 1 {
		t.Errorf("%v, %q are left", err, s.left(t))
	}
	// The claim is one of an agent that knows no forks.
	s.dumb = true
	if _, err := s.StartFrom(t.Context(), "c", "v1"); !errors.Is(err, holdfast.ErrBusy) || len(s.left(t)) != 1 {
		t.Errorf("%v, %q are left", err, s.left(t))
	}
	all, err := s.Snapshots(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "v1" {
		t.Errorf("%+v, %v", all, err)
	}
	s.Mover = nil
	if err := s.RemoveSnapshot(t.Context(), "v1"); err != nil {
		t.Error(err)
	}
	if err := s.RemoveSnapshot(t.Context(), "v1"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Error(err)
	}
}
