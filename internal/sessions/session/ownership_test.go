package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// deafStore is a store whose watch loses every event.
type deafStore struct{ store.Store }

func (deafStore) Watch(ctx context.Context, _ holdfast.Revision) <-chan store.Event {
	out := make(chan store.Event)
	context.AfterFunc(ctx, func() { close(out) })
	return out
}

// TestLostOwnershipEndsTheContainer: another client deletes or rewrites the record of a
// running session. The node kills the container, although the watch loses events, the
// store was unavailable meanwhile, or its history is gone.
func TestLostOwnershipEndsTheContainer(t *testing.T) {
	release := func(t *testing.T, s *memstore.Store, o holdfast.Owner) {
		if keys, err := s.Release(t.Context(), o); err != nil || len(keys) != 1 {
			t.Fatalf("%v, %v", keys, err)
		}
	}
	replace := func(t *testing.T, s *memstore.Store, o holdfast.Owner) {
		release(t, s, o)
		theirs(t, s, o.Key)
	}
	for name, c := range map[string]struct {
		deaf  bool
		often time.Duration // between comparisons
		lose  func(*testing.T, *memstore.Store, holdfast.Owner)
	}{
		"deleted":                  {often: time.Hour, lose: release},
		"of another node":          {often: time.Hour, lose: replace},
		"deleted, no event":        {deaf: true, often: 20 * time.Millisecond, lose: release},
		"another node's, no event": {deaf: true, often: 20 * time.Millisecond, lose: replace},
		"deleted before a compaction": {often: time.Hour, lose: func(t *testing.T, s *memstore.Store, o holdfast.Owner) {
			release(t, s, o)
			s.Forget()
		}},
		"deleted before an outage": {often: 20 * time.Millisecond, lose: func(t *testing.T, s *memstore.Store, o holdfast.Owner) {
			release(t, s, o)
			s.SetDown(true)
			time.AfterFunc(100*time.Millisecond, func() { s.SetDown(false) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem, fake := memstore.New(1000), newFakeEngine(t)
			t.Cleanup(fake.close)
			told := &recorder{fake: fake}
			set := setup{id: "n1", store: mem, engine: fake, dead: told, cfg: Config{Templates: []Template{anywhere(t)}, CheckEvery: c.often}}
			if c.deaf {
				set.faulty = deafStore{mem}
			}
			n := newNode(t, set)
			r, kept := n.serve(t, "alice"), n.serve(t, "bob")
			o, err := mem.Get(t.Context(), "alice")
			if err != nil {
				t.Fatal(err)
			}
			c.lose(t, mem, o)
			poll.Until(t, "the container is dead", func() bool { return len(fake.running()["alice"]) == 0 })
			<-r.Left
			poll.Until(t, "the deadman forgets it", func() bool { told.mu.Lock(); defer told.mu.Unlock(); return len(told.held) == 1 })
			if again := n.serve(t, "bob"); again.Epoch != kept.Epoch {
				t.Errorf("another session was ended: epoch %d became %d", kept.Epoch, again.Epoch)
			}
			if now, err := mem.Get(t.Context(), "alice"); err == nil && now.Node == n.cfg.Node {
				t.Errorf("the record is back: %v", now)
			}
		})
	}
}

// TestLostOwnershipEndsTheBoot: the record is deleted while an init step runs, and while
// another goroutine saves the session.
func TestLostOwnershipEndsTheBoot(t *testing.T) {
	tmpl := anywhere(t)
	tmpl.Steps = []Step{{Name: "first", Timeout: time.Minute}}
	n, fake := fakeNode(t, setup{cfg: Config{Templates: []Template{tmpl}}})
	fake.set(func() { fake.stepTakes = -1 })
	failed := make(chan error, 1)
	go func() { _, _, err := n.Acquire(context.Background(), "alice", ""); failed <- err }()
	poll.Until(t, "the step runs", func() bool { return len(fake.running()["alice"]) == 1 })
	poll.Until(t, "the record is deleted", func() bool { // the boot may write it meanwhile
		keys, err := n.store.Release(t.Context(), n.records(t)...)
		return err == nil && len(keys) == 1
	})
	if err := <-failed; !errors.Is(err, errDisowned) {
		t.Errorf("got %v", err)
	}
	n.empty(t)
}

// TestLostOwnershipOfASessionThatIsEnding: a drain has marked the session and not killed
// it yet.
func TestLostOwnershipOfASessionThatIsEnding(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	n.serve(t, "alice")
	b := n.MarkTerminating()
	if _, err := n.store.Release(t.Context(), n.records(t)...); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the container is dead", func() bool { return len(fake.running()) == 0 })
	b.Killed(n.deps.Killer.Kill(t.Context(), b.Targets()))
	if count, err := b.Release(t.Context()); err != nil || count != 1 {
		t.Errorf("released %d, %v", count, err)
	}
	n.empty(t)
}

// TestOwnWritesAreNoLoss: comparisons run all the time while sessions boot, are stopped
// and are handed over.
func TestOwnWritesAreNoLoss(t *testing.T) {
	n, _ := fakeNode(t, setup{cfg: Config{CheckEvery: time.Millisecond}})
	for range 20 {
		for _, key := range keys {
			n.serve(t, key)
		}
		if _, err := n.Stop(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if _, err := n.Move(t.Context(), "b", time.Now()); err != nil {
			t.Error(err)
		}
	}
	if lost := testutil.ToFloat64(n.deps.Metrics.disowned); lost != 0 {
		t.Errorf("%v sessions were disowned", lost)
	}
}
