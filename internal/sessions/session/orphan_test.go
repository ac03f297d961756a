package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill/killtest"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// hidden starts a container that no engine knows. dead is closed when the container is
// dead.
func hidden(t *testing.T) (id string, dead <-chan struct{}) {
	t.Helper()
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	id = hex.EncodeToString(raw)
	cmd, err := killtest.Start(id)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if err := killtest.Remove(id); err != nil {
			t.Error(err)
		}
	})
	return id, ended
}

// readyRecord writes a record of n1 in the state ready.
func readyRecord(t *testing.T, s *memstore.Store, key holdfast.SessionKey, id string) holdfast.Owner {
	t.Helper()
	lease, _, err := s.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Claim(t.Context(), holdfast.Owner{Key: key, Node: "n1", State: holdfast.Claimed}, lease)
	if err != nil {
		t.Fatal(err)
	}
	o.State, o.ContainerID = holdfast.Ready, id
	if o, err = s.Advance(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func wasKilled(t *testing.T, dead <-chan struct{}) {
	t.Helper()
	select {
	case <-dead:
	case <-time.After(time.Minute):
		t.Error("the container runs")
	}
}

// The engine may have lost a container that it started, or report it as ended.
func TestAdoptBelievesTheKernelAndNotTheEngine(t *testing.T) {
	for name, say := range map[string]func(*fakeEngine, *recorder, *memstore.Store, string){
		"it knows of none": func(_ *fakeEngine, _ *recorder, s *memstore.Store, id string) { readyRecord(t, s, "alice", id) },
		"exited": func(f *fakeEngine, _ *recorder, s *memstore.Store, id string) {
			readyRecord(t, s, "alice", id)
			f.containers[id] = &fakeContainer{Container: engine.Container{ID: id, Name: "x", State: "exited", Labels: map[string]string{LabelNode: "n1", LabelSession: "alice"}}}
		},
		"removing": func(f *fakeEngine, _ *recorder, _ *memstore.Store, id string) {
			f.containers[id] = &fakeContainer{Container: engine.Container{ID: id, Name: "x", State: "removing", Labels: map[string]string{LabelNode: "n1", LabelSession: "alice"}}}
		},
		"only the deadman knows": func(_ *fakeEngine, r *recorder, _ *memstore.Store, id string) { r.unconfirmed = []string{id} },
	} {
		t.Run(name, func(t *testing.T) {
			fake, mem := newFakeEngine(t), memstore.New(1000)
			dead := &recorder{fake: fake}
			id, gone := hidden(t)
			say(fake, dead, mem, id)
			m, watcher := unstarted(t, setup{store: mem, id: "n1", engine: fake, dead: dead})
			a, err := m.Adopt(t.Context())
			if err != nil || a.Sessions != 0 || a.Stuck != 0 {
				t.Errorf("%+v, %v", a, err)
			}
			wasKilled(t, gone)
			if r := m.records(t); len(r) > 0 {
				t.Errorf("records left: %v", r)
			}
			if got := fake.done("forget " + id); len(got) == 0 {
				t.Error("Forget was not called for the dead container")
			}
			if err := watcher.Run(canceled(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// A container that cannot be removed blocks only its own key.
func TestStrayThatStaysCostsItsOwnKeyOnly(t *testing.T) {
	mem := memstore.New(1000)
	first, fake := fakeNode(t, setup{store: mem, id: "n1"})
	before := first.serve(t, "bob")
	first.end()
	id, err := fake.Create(t.Context(), engine.Spec{Name: "x", Labels: map[string]string{LabelNode: "n1", LabelSession: "alice", LabelEpoch: "2"}})
	if err != nil {
		t.Fatal(err)
	}
	readyRecord(t, mem, "alice", id)
	other, err := fake.Create(t.Context(), engine.Spec{Name: "y", Labels: map[string]string{LabelNode: "n1", LabelSession: "bob", LabelEpoch: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	fake.set(func() { fake.noRemove = errors.New("device or resource busy") })
	set := setup{store: mem, id: "n1", engine: fake, cfg: Config{Templates: first.cfg.Templates}, dead: &recorder{fake: fake}}
	n, watcher := unstarted(t, set)
	a, err := n.Adopt(t.Context())
	if err != nil || a.Sessions != 1 || a.Stuck != 2 {
		t.Fatalf("%+v, %v", a, err)
	}
	n.run(t, watcher)
	if got := n.serve(t, "bob"); got.ContainerID != before.ContainerID {
		t.Errorf("bob's container changed from %s to %s", before.ContainerID, got.ContainerID)
	}
	for _, id := range []string{id, other} {
		if len(fake.done("forget "+id)) > 0 || len(fake.done("expect "+id)) == 0 {
			t.Errorf("the deadman does not know %s: %q", id, fake.done(""))
		}
	}
	if i, err := n.Get("alice"); err != nil || i.Error == "" || i.Owner.State != holdfast.Leaving {
		t.Errorf("%+v, %v", i, err)
	}
	if len(n.records(t)) != 2 {
		t.Errorf("records %v", n.records(t))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, left := n.MarkTerminating().Settle(ctx); len(left) != 2 {
		t.Errorf("a drain would now leave %+v", left)
	}
	fake.set(func() { fake.noRemove = nil })
	if got := n.serve(t, "alice"); got.ContainerID == id {
		t.Error("the session is served by a container whose start was not observed")
	}
	poll.Until(t, "the other container is gone too", func() bool { _, err := fake.Inspect(t.Context(), other); return errors.Is(err, holdfast.ErrNotFound) })
}

// A container that the engine cannot report on does not prevent the adoption of others.
// It is adopted once the engine reports on it. Until then, or until it is dead, it
// blocks only its own key.
func TestContainerThatCannotBeInspected(t *testing.T) {
	for name, lasts := range map[string]bool{"for a moment": false, "for good": true} {
		t.Run(name, func(t *testing.T) {
			mem := memstore.New(1000)
			first, fake := fakeNode(t, setup{store: mem, id: "n1"})
			alice, bob := first.serve(t, "alice"), first.serve(t, "bob")
			first.end()
			fake.set(func() {
				fake.unclear = map[string]error{alice.ContainerID: errors.New("500: layer does not exist")}
			})
			n, watcher := unstarted(t, setup{store: mem, id: "n1", engine: fake, cfg: Config{Templates: first.cfg.Templates}})
			clear := func() { fake.set(func() { fake.unclear = nil }) }
			if lasts {
				n.askTime = 100 * time.Millisecond
			} else {
				time.AfterFunc(100*time.Millisecond, clear)
			}
			a, err := n.Adopt(t.Context())
			if want := (Adopted{Sessions: 1, Orphans: 1, Stuck: 1}); lasts && (err != nil || a != want) || !lasts && (err != nil || a != Adopted{Sessions: 2}) {
				t.Fatalf("%+v, %v", a, err)
			}
			n.run(t, watcher)
			if got := n.serve(t, "bob"); got.ContainerID != bob.ContainerID {
				t.Errorf("bob's container changed from %s to %s", bob.ContainerID, got.ContainerID)
			}
			if lasts {
				if o, err := n.store.Get(t.Context(), "alice"); err != nil || o.Epoch != alice.Epoch {
					t.Errorf("the container is not seen dead, and its record is %+v, %v", o, err)
				}
				clear()
			}
			if got := n.serve(t, "alice"); (got.Epoch == alice.Epoch) == lasts {
				t.Errorf("alice's epoch changed from %d to %d", alice.Epoch, got.Epoch)
			}
		})
	}
}

// A drain does not report a session as done while its snapshot runs: its record would
// expire with the lease, and the snapshot would never be repeated.
func TestDrainWaitsForASnapshotThatIsBeingTaken(t *testing.T) {
	s := newSnapping(t, note, nil)
	s.serve(t, "alice")
	unblock := s.block(t)
	go func() { _, _ = s.Stop(context.Background(), "alice") }()
	poll.Until(t, "the snapshot is being taken", func() bool { return len(s.notes(t)) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	s.StopClaiming()
	if _, left := s.MarkTerminating().Settle(ctx); len(left) != 1 || left[0].Key != "alice" {
		t.Errorf("left %+v", left)
	}
	b := s.MarkTerminating()
	unblock()
	if count, left := b.Settle(t.Context()); count != 1 || len(left) > 0 {
		t.Errorf("of %d left %+v", count, left)
	}
	s.empty(t)
}
