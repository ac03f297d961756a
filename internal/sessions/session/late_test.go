package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
)

// lateStore writes a claim, and does not answer before its caller gives up.
type lateStore struct {
	store.Store
	claimed chan struct{}
}

func (l lateStore) Claim(ctx context.Context, o holdfast.Owner, id store.LeaseID) (holdfast.Owner, error) {
	if _, err := l.Store.Claim(ctx, o, id); err != nil {
		return holdfast.Owner{}, err
	}
	close(l.claimed)
	<-ctx.Done()
	return holdfast.Owner{}, ctx.Err()
}

func TestClaimThatIsNeverAnsweredIsGivenUp(t *testing.T) {
	mem := memstore.New(1000)
	late := lateStore{mem, make(chan struct{})}
	n := newNode(t, setup{store: mem, faulty: late, engine: newFakeEngine(t)})
	failed := make(chan error, 1)
	go func() { _, _, err := n.Acquire(context.Background(), "alice", ""); failed <- err }()
	<-late.claimed
	n.StopClaiming()
	if err := <-failed; !errors.Is(err, holdfast.ErrDraining) {
		t.Errorf("the waiting request got %v", err)
	}
	if _, left := n.MarkTerminating().Settle(t.Context()); len(left) > 0 {
		t.Errorf("left %+v", left)
	}
	if r := n.records(t); len(r) > 0 {
		t.Errorf("a drained node owns %v", r)
	}
}

func TestAdoptKillsNothingWhereTheEngineDoesNotSayWhatRuns(t *testing.T) {
	mem, fake := memstore.New(1000), newFakeEngine(t)
	t.Cleanup(fake.close)
	id, err := fake.Create(t.Context(), engine.Spec{Name: "x", Labels: map[string]string{LabelNode: "n1", LabelSession: "alice", LabelEpoch: "2"}})
	if err == nil {
		err = fake.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	lease, _, err := mem.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	o, err := mem.Claim(t.Context(), holdfast.Owner{Key: "alice", Node: "n1", State: holdfast.Claimed}, lease)
	if err != nil {
		t.Fatal(err)
	}
	o.State, o.ContainerID = holdfast.Ready, id
	if o, err = mem.Advance(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if o.Epoch != 2 {
		t.Fatalf("epoch %d", o.Epoch)
	}
	fake.unclear = map[string]error{id: fmt.Errorf("gone in the middle: %w", holdfast.ErrEngine)}
	m, watcher := unstarted(t, setup{store: mem, id: "n1", engine: fake})
	if a, err := m.Adopt(t.Context()); err == nil {
		t.Errorf("adopted %+v", a)
	}
	if len(fake.running()["alice"]) != 1 {
		t.Error("the session's container was ended")
	}
	// The engine answers the next agent.
	fake.unclear = nil
	if a, err := m.Adopt(t.Context()); err != nil || a.Sessions != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	if err := watcher.Run(canceled(t)); err != nil {
		t.Error(err)
	}
}

// TestStoreUnavailableDuringADrain: sessions that a drain could not release can be
// claimed again once the store is available.
func TestStoreUnavailableDuringADrain(t *testing.T) {
	c := newChaos(t, 1, false)
	first := c.serve(t, "a")
	c.StopClaiming()
	b := c.MarkTerminating()
	b.Killed(c.deps.Killer.Kill(t.Context(), b.Targets()))
	c.mem.SetDown(true)
	if n, err := b.Release(t.Context()); err == nil || n != 0 {
		t.Errorf("released %d, %v", n, err)
	}
	b.ReleaseLater()
	c.mem.SetDown(false)
	c.Claim()
	if again := c.serve(t, "a"); again.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
	}
}

// TestSecondStopWaitsForTheFirst: the second Stop does not return while the first one
// still waits for the store.
func TestSecondStopWaitsForTheFirst(t *testing.T) {
	c := newChaos(t, 1, false)
	r := c.serve(t, "a")
	c.mem.SetDown(true)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := c.Stop(context.Background(), "a"); first <- err }()
	<-r.Left
	go func() { _, err := c.Stop(context.Background(), "a"); second <- err }()
	select {
	case err := <-first:
		t.Fatalf("the first Stop returned %v while the session was owned", err)
	case err := <-second:
		t.Fatalf("the second Stop returned %v while the session was owned", err)
	case <-time.After(200 * time.Millisecond):
	}
	c.mem.SetDown(false)
	for _, told := range []chan error{first, second} {
		if err := <-told; err != nil {
			t.Error(err)
		}
	}
	if len(c.records(t)) > 0 {
		t.Error("the session is still owned")
	}
}

// TestNameOfAnotherContainer: an agent with another store uses the same engine.
func TestNameOfAnotherContainer(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	o := theirs(t, n.store, "bob")
	// The epoch of the next claim.
	next := o
	next.Key, next.Epoch = "alice", o.Epoch+1
	id, err := fake.Create(t.Context(), n.cfg.Templates[0].spec(next))
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { _, err := n.Start(context.Background(), "alice", ""); failed <- err }()
	select {
	case err := <-failed:
		t.Fatalf("got %v while the name was taken by %s", err, id)
	case <-time.After(200 * time.Millisecond):
	}
	if _, err := n.Stop(t.Context(), "alice"); err != nil {
		t.Error(err)
	}
	if c, err := fake.Inspect(t.Context(), id); err != nil {
		t.Errorf("a boot that was given up removed the other agent's container: %+v, %v", c, err)
	}
	if err := <-failed; !errors.Is(err, holdfast.ErrStopped) {
		t.Errorf("got %v: nothing was tested", err)
	}
	n.serve(t, "alice") // with another epoch
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
