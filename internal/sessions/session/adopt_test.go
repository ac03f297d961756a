package session

import (
	"context"
	"errors"
	"slices"
	"testing"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

func TestNextAgentTakesSessionsOver(t *testing.T) {
	s := memstore.New(1000)
	first := newNode(t, setup{store: s, id: "n1"})
	before := map[holdfast.SessionKey]holdfast.Route{}
	for _, key := range []holdfast.SessionKey{"a", "b", "c"} {
		before[key] = first.serve(t, key)
	}
	first.end()
	second := newNode(t, setup{store: s, id: "n1"})
	for key, r := range before {
		got := second.serve(t, key)
		if got.ContainerID != r.ContainerID || got.Epoch != r.Epoch || got.Address != r.Address {
			t.Errorf("%s: %+v became %+v", key, r, got)
		}
		if err := answers(got); err != nil {
			t.Error(err)
		}
	}
	if n := len(second.containers(t)); n != 3 {
		t.Errorf("%d containers", n)
	}
	// Adopted sessions are watched, and can be stopped as before.
	if err := second.engine.Kill(t.Context(), before["a"].ContainerID); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the death of an adopted container is seen", func() bool { _, err := second.Get("a"); return errors.Is(err, holdfast.ErrNotFound) })
	if report, err := second.Stop(t.Context(), "b"); err != nil || len(report.Dead) != 1 {
		t.Errorf("stopping an adopted session: %+v, %v", report, err)
	}
}

// ghost creates a container like that of a session of the node.
func ghost(t *testing.T, e engine.Engine, node holdfast.NodeID, key holdfast.SessionKey, epoch holdfast.Epoch) string {
	t.Helper()
	spec := web().spec(holdfast.Owner{Key: key, Node: node, Epoch: epoch})
	id, err := e.Create(t.Context(), spec)
	if err == nil {
		err = e.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Remove(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	return id
}

func TestWhatDoesNotFitIsEndedAndGivenUp(t *testing.T) {
	e := openEngine(t)
	s := memstore.New(1000)
	lease, _, err := s.Grant(t.Context(), 3600e9)
	if err != nil {
		t.Fatal(err)
	}
	claim := func(node holdfast.NodeID, key holdfast.SessionKey) holdfast.Owner {
		o, err := s.Claim(t.Context(), holdfast.Owner{Key: key, Node: node, State: holdfast.Claimed}, lease)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	advance := func(o holdfast.Owner, state holdfast.State, id string) {
		o.State, o.ContainerID = state, id
		if _, err := s.Advance(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	// A container without a record, one with a record of another epoch, one of an
	// interrupted boot, one that was leaving, a record without its container, and a
	// claim without anything.
	stray := ghost(t, e, "n1", "stray", 1)
	old := claim("n1", "old")
	oldID := ghost(t, e, "n1", "old", old.Epoch-1)
	advance(old, holdfast.Ready, oldID)
	cut := claim("n1", "cut")
	cutID := ghost(t, e, "n1", "cut", cut.Epoch)
	advance(cut, holdfast.Starting, "")
	going := claim("n1", "going")
	goingID := ghost(t, e, "n1", "going", going.Epoch)
	advance(going, holdfast.Leaving, goingID)
	advance(claim("n1", "lost"), holdfast.Ready, "0123456789abcdef")
	claim("n1", "bare")
	// A container of another node on the same engine, and one of a user.
	other := claim("n2", "other")
	otherID := ghost(t, e, "n2", "other", other.Epoch)
	advance(other, holdfast.Ready, otherID)
	theirs, err := e.Create(t.Context(), engine.Spec{Name: "a-persons", Image: web().Image})
	if err == nil {
		err = e.Start(t.Context(), theirs)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Remove(context.Background(), theirs) })

	n := newNode(t, setup{store: s, id: "n1", engine: e})
	for _, id := range []string{stray, oldID, cutID, goingID} {
		poll.Until(t, "the engine, which notices a death later than the kernel, reports the container dead", func() bool {
			c, err := e.Inspect(t.Context(), id)
			return err != nil || !c.Running()
		})
	}
	for _, id := range []string{otherID, theirs} {
		if c, err := e.Inspect(t.Context(), id); err != nil || !c.Running() {
			t.Errorf("a container of another owner was changed: %+v, %v", c, err)
		}
	}
	if r := n.records(t); len(r) != 1 || r[0].Key != "other" {
		t.Errorf("records left: %v", r)
	}
	poll.Until(t, "the dead containers are removed", func() bool { return len(n.containers(t)) == 0 })
}

func TestDrainOfABatch(t *testing.T) {
	n := newNode(t, setup{})
	keys := []holdfast.SessionKey{"a", "b", "c"}
	for _, key := range keys {
		n.serve(t, key)
	}
	if booting := n.StopClaiming(); booting != 0 {
		t.Errorf("%d boots in progress", booting)
	}
	if _, _, err := n.Acquire(t.Context(), "d", ""); !errors.Is(err, holdfast.ErrDraining) {
		t.Errorf("a new session: %v", err)
	}
	b := n.MarkTerminating()
	b.Killed(n.deps.Killer.Kill(t.Context(), b.Targets()))
	n.store.SetDown(true)
	if count := b.GiveUp(t.Context()); count != 0 {
		t.Errorf("%d released without a store", count)
	}
	if count, err := b.Release(t.Context()); err == nil || count != 0 {
		t.Errorf("release without a store: %d, %v", count, err)
	}
	n.store.SetDown(false)
	if count, err := b.Release(t.Context()); err != nil || count != len(keys) {
		t.Errorf("release: %d, %v", count, err)
	}
	if count, left := b.Settle(t.Context()); count != 0 || len(left) != 0 {
		t.Errorf("Settle waited for %d, left %+v", count, left)
	}
	n.empty(t)
	n.Claim()
	n.serve(t, "d")
}

func TestDrainGivesUpBoots(t *testing.T) {
	tmpl := web()
	tmpl.Env = map[string]string{"TESTSERVER_DELAY": "1h"}
	n := newNode(t, setup{cfg: Config{Templates: []Template{tmpl}}})
	failed := make(chan error, 1)
	go func() { _, _, err := n.Acquire(context.Background(), "alice", ""); failed <- err }()
	poll.Until(t, "the container runs", func() bool {
		return slices.ContainsFunc(n.containers(t), func(c engine.Container) bool { return c.State == "running" })
	})
	if booting := n.StopClaiming(); booting != 1 {
		t.Errorf("%d boots in progress", booting)
	}
	if err := <-failed; !errors.Is(err, holdfast.ErrDraining) {
		t.Errorf("the waiting request got %v", err)
	}
	if count, left := n.MarkTerminating().Settle(t.Context()); count > 1 || len(left) != 0 {
		t.Errorf("Settle waited for %d, left %+v", count, left)
	}
	n.empty(t)
}
