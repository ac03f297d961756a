package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// fakeNode is a manager on a fake engine.
func fakeNode(t *testing.T, s setup) (*node, *fakeEngine) {
	t.Helper()
	fake := newFakeEngine(t)
	t.Cleanup(fake.close)
	s.engine = fake
	if s.cfg.Templates == nil {
		s.cfg.Templates = []Template{anywhere(t)}
	}
	return newNode(t, s), fake
}

// theirs returns a record that another node holds.
func theirs(t *testing.T, s *memstore.Store, key holdfast.SessionKey) holdfast.Owner {
	t.Helper()
	lease, _, err := s.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Claim(t.Context(), holdfast.Owner{Key: key, Node: "other", State: holdfast.Claimed}, lease)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// A session that does not run boots only with leave; one that runs needs none.
func TestBootIsAsked(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	refused := errors.New("refused")
	refuse := func() error { return refused }
	if _, _, err := n.AcquireIf(t.Context(), "alice", "", refuse); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if i, err := n.Get("alice"); !errors.Is(err, holdfast.ErrNotFound) || len(fake.running()) > 0 {
		t.Errorf("an entry %+v, %v; containers %v", i, err, fake.running())
	}
	n.serve(t, "alice")
	_, release, err := n.AcquireIf(t.Context(), "alice", "", refuse)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestSessionOfAnotherNodeIsElsewhere(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	o := theirs(t, n.store, "alice")
	for range 2 {
		_, _, err := n.Acquire(t.Context(), "alice", "")
		var other *holdfast.ElsewhereError
		if !errors.As(err, &other) || other.Owner != o {
			t.Fatalf("got %v, want that it is at %v", err, o)
		}
		var boot *holdfast.BootError
		if errors.As(err, &boot) {
			t.Errorf("%v is reported as a failed boot", err)
		}
	}
	if i, err := n.Get("alice"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("this node still has an entry: %+v, %v", i, err)
	}
	if got := fake.running(); len(got) > 0 {
		t.Errorf("containers run here: %v", got)
	}
	// As soon as the other node releases the session, this node can claim it.
	if _, err := n.store.Release(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if r := n.serve(t, "alice"); r.Epoch <= o.Epoch {
		t.Errorf("epoch %d after %d", r.Epoch, o.Epoch)
	}
}

func TestJoinTakesPartAndBeginsNothing(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	if _, _, err := n.Join(t.Context(), "alice"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("Join without a session: %v", err)
	}
	if sessions, _ := n.Counts(); sessions != 0 {
		t.Errorf("%d sessions after a Join", sessions)
	}

	fake.missing["none"] = true
	fake.pulling = make(chan struct{})
	started := make(chan error, 1)
	go func() { _, err := n.Start(context.Background(), "alice", ""); started <- err }()
	poll.Until(t, "the session boots", func() bool { _, boots := n.Counts(); return boots == 1 })
	joined := make(chan holdfast.Route, 1)
	go func() {
		r, release, err := n.Join(context.Background(), "alice")
		if err != nil {
			t.Error(err)
		} else {
			release()
		}
		joined <- r
	}()
	select {
	case r := <-joined:
		t.Fatalf("Join returned %+v before the session was ready", r)
	case <-time.After(50 * time.Millisecond):
	}
	close(fake.pulling)
	r := <-joined
	if err := <-started; err != nil || r.Epoch == 0 {
		t.Fatalf("%+v, %v", r, err)
	}

	// Join waits for a session that leaves, and then finds none.
	n.store.SetDown(true)
	go func() { _, _ = n.Stop(context.Background(), "alice") }()
	<-r.Left
	gone := make(chan error, 1)
	go func() { _, _, err := n.Join(context.Background(), "alice"); gone <- err }()
	select {
	case err := <-gone:
		t.Fatalf("Join returned %v while the session was owned", err)
	case <-time.After(50 * time.Millisecond):
	}
	n.store.SetDown(false)
	if err := <-gone; !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("Join after its end: %v", err)
	}
}

func TestHoldIsOfOneEpochThatIsReady(t *testing.T) {
	n, _ := fakeNode(t, setup{cfg: Config{IdleStop: 200 * time.Millisecond}})
	r, first, err := n.Acquire(t.Context(), "alice", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, epoch := range []holdfast.Epoch{r.Epoch - 1, r.Epoch + 1, 0} {
		if _, _, err := n.Hold("alice", epoch); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}
	if _, _, err := n.Hold("bob", r.Epoch); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("another key: %v", err)
	}
	held, release, err := n.Hold("alice", r.Epoch)
	if err != nil || held.ContainerID != r.ContainerID {
		t.Fatalf("%+v, %v", held, err)
	}
	first()
	if i, err := n.Get("alice"); err != nil || i.Connections != 1 {
		t.Errorf("%+v, %v", i, err)
	}
	release()
	release() // a second call has no effect
	<-r.Left  // no client is connected any more
	if _, _, err := n.Hold("alice", r.Epoch); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("Hold of a session that left: %v", err)
	}
	n.empty(t)
}

func TestWhatABootTookIsInItsRecord(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	fake.missing["none"] = true
	n.serve(t, "alice")
	i, err := n.Get("alice")
	if err != nil {
		t.Fatal(err)
	}
	p := i.Owner.Boot
	if p.Claim <= 0 || p.Pull <= 0 || p.Create <= 0 || p.Start <= 0 || p.Ready <= 0 || p.Init != 0 {
		t.Errorf("phases %+v", p)
	}
	if o := n.records(t)[0]; o.Boot != p {
		t.Errorf("the record says %+v, the node %+v", o.Boot, p)
	}
}

// TestRequestDuringARollBackGetsAnotherBoot: only the requests that waited for a failed
// boot get its error.
func TestRequestDuringARollBackGetsAnotherBoot(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	fake.missing["none"] = true
	fake.pulling = make(chan struct{})
	first := make(chan error, 1)
	go func() { _, _, err := n.Acquire(context.Background(), "alice", ""); first <- err }()
	poll.Until(t, "the image is pulled", func() bool { fake.mu.Lock(); defer fake.mu.Unlock(); return len(fake.pulled) == 1 })
	n.store.SetDown(true) // so that the claim cannot be released yet
	go func() { _, _ = n.Stop(context.Background(), "alice") }()
	if err := <-first; !errors.Is(err, holdfast.ErrStopped) {
		t.Errorf("the request that waited for the failed boot got %v", err)
	}
	second := make(chan error, 1)
	go func() { _, _, err := n.Acquire(context.Background(), "alice", ""); second <- err }()
	select {
	case err := <-second:
		t.Fatalf("a later request got %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(fake.pulling)
	n.store.SetDown(false)
	if err := <-second; err != nil {
		t.Errorf("a later request got %v", err)
	}
}
