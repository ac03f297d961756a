package session

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/kill"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// TestLostLeaseKillsSessionsThatAreEnding: a lost lease also kills sessions of a drain
// that has not killed them yet, and of a Stop that waits for the store.
func TestLostLeaseKillsSessionsThatAreEnding(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	marked := n.serve(t, "a")
	b := n.MarkTerminating()
	stopped := n.serve(t, "b")
	n.store.SetHung(true)
	told := make(chan error, 1)
	go func() { _, err := n.Stop(context.Background(), "b"); told <- err }()
	<-marked.Left
	<-stopped.Left

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n.LeaseLost(ctx)
	if ctx.Err() != nil {
		t.Error("LeaseLost waited for the store")
	}
	if running := fake.running(); len(running) > 0 {
		t.Errorf("containers run without a lease: %v", running)
	}
	// The goroutine that ends the sessions can continue.
	report := n.deps.Killer.Kill(t.Context(), b.Targets())
	if len(report.Dead) != 1 || len(report.Left) > 0 {
		t.Errorf("%+v", report)
	}
	b.Killed(report)
	n.store.SetHung(false)
	if count, err := b.Release(t.Context()); err != nil || count != 1 {
		t.Errorf("released %d, %v", count, err)
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
	n.empty(t)
}

// blind is a watcher that rejects the first targets.
type blind struct {
	Watcher
	mu      sync.Mutex
	refuses int
	asked   int
}

func (b *blind) Add(t *kill.Target, dead func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if b.asked <= b.refuses {
		return errors.New("no descriptor left")
	}
	return b.Watcher.Add(t, dead)
}

func (b *blind) times() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

func TestContainerThatCannotBeWatchedIsLookedAfter(t *testing.T) {
	for name, refuses := range map[string]int{"at first": 1, "ever": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			s, fake := memstore.New(1000), newFakeEngine(t)
			t.Cleanup(fake.close)
			set := setup{id: "n1", store: s, engine: fake, cfg: Config{Templates: []Template{anywhere(t)}}}
			watch := func() *blind {
				w := &blind{refuses: refuses}
				set.watch = func(real Watcher) Watcher { w.Watcher = real; return w }
				return w
			}
			die := func(r holdfast.Route) {
				fake.mu.Lock()
				c := fake.find(r.ContainerID)
				fake.mu.Unlock()
				if err := c.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				<-r.Left
			}
			w := watch()
			n := newNode(t, set)
			r := n.serve(t, "alice")
			poll.Until(t, "the watch is tried again", func() bool { return w.times() > 1 })
			die(r)
			r = n.serve(t, "alice")
			n.end()

			// The same for an adopted session.
			w = watch()
			n = newNode(t, set)
			if again := n.serve(t, "alice"); again.Epoch != r.Epoch {
				t.Fatalf("epoch %d became %d", r.Epoch, again.Epoch)
			}
			r = n.serve(t, "alice")
			poll.Until(t, "the watch is tried again", func() bool { return w.times() > 1 })
			die(r)
			n.empty(t)
		})
	}
}

func TestClaimThatIsWrittenTooLateIsGivenUp(t *testing.T) {
	mem := memstore.New(1000)
	write := make(chan func(), 1)
	late := &lossy{Store: mem, lost: map[string]bool{"release": true}, late: func(w func()) { write <- w }}
	n, _ := fakeNode(t, setup{store: mem, faulty: late})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _, _ = n.Acquire(ctx, "alice", "") }()
	claim := <-write
	if _, err := n.Stop(t.Context(), "alice"); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
		t.Fatal(err)
	}
	cancel()
	poll.Until(t, "no node has the session", func() bool { sessions, _ := n.Counts(); return sessions == 0 && len(n.records(t)) == 0 })
	claim()
	n.empty(t)
}

func TestOnlyRecordsWithoutASessionAreDisowned(t *testing.T) {
	n, _ := fakeNode(t, setup{})
	r := n.serve(t, "alice")
	mine := n.records(t)[0]
	old := mine
	old.Epoch--
	other := theirs(t, n.store, "bob")
	gone := holdfast.Owner{Key: "carol", Node: n.cfg.Node, Epoch: 7}
	for _, o := range []holdfast.Owner{mine, old, other, gone} {
		n.ReclaimOrphan(o)
	}
	poll.Until(t, "all records are checked", func() bool { sessions, _ := n.Counts(); return sessions == 1 })
	if again := n.serve(t, "alice"); again.Epoch != r.Epoch {
		t.Errorf("epoch %d became %d", r.Epoch, again.Epoch)
	}
	if list := n.records(t); len(list) != 2 {
		t.Errorf("records %v", list)
	}
}

// TestOldRecordDoesNotBlockItsKey: the record is in a later state than claimed, and no
// session belongs to it.
func TestOldRecordDoesNotBlockItsKey(t *testing.T) {
	s := memstore.New(1000)
	n, _ := fakeNode(t, setup{store: s, id: "n1"})
	n.end() // so that it does not see the record
	n, watcher := unstarted(t, setup{store: s, id: "n1", engine: n.engine, cfg: n.cfg})
	o, err := s.Claim(t.Context(), holdfast.Owner{Key: "alice", Node: "n1", State: holdfast.Claimed}, store.LeaseID(n.lease.Load()))
	if err != nil {
		t.Fatal(err)
	}
	o.State, o.ContainerID = holdfast.Ready, "0123456789abcdef"
	if _, err := s.Advance(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	n.run(t, watcher) // without Adopt
	if r := n.serve(t, "alice"); r.Epoch <= o.Epoch {
		t.Errorf("epoch %d after %d", r.Epoch, o.Epoch)
	}
}

// adopting creates three sessions of an earlier agent on the fake engine. The engine
// hangs after it has reported on one of them to the next agent.
func adopting(t *testing.T) (*node, *fakeEngine) {
	t.Helper()
	s, fake := memstore.New(1000), newFakeEngine(t)
	t.Cleanup(fake.close)
	set := setup{id: "n1", store: s, engine: fake, cfg: Config{Templates: []Template{anywhere(t)}}}
	first := newNode(t, set)
	for _, key := range keys {
		first.serve(t, key)
	}
	first.end()
	fake.set(func() { fake.inspects = 1 })
	n, watcher := unstarted(t, set)
	t.Cleanup(func() {
		if err := watcher.Run(canceled(t)); err != nil {
			t.Error(err)
		}
	})
	return n, fake
}

func TestLeaseThatIsLostDuringAdopt(t *testing.T) {
	for name, lose := range map[string]func(*node, context.CancelCauseFunc){
		"told":      func(n *node, _ context.CancelCauseFunc) { n.LeaseLost(context.Background()) },
		"cancelled": func(_ *node, cancel context.CancelCauseFunc) { cancel(ErrLeaseLost) },
	} {
		t.Run(name, func(t *testing.T) {
			n, fake := adopting(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			failed := make(chan error, 1)
			go func() { _, err := n.Adopt(ctx); failed <- err }()
			<-fake.hanging
			fake.set(func() { fake.inspects = -1 })
			lose(n, cancel)
			if err := <-failed; !errors.Is(err, ErrLeaseLost) {
				t.Errorf("got %v", err)
			}
			if running := fake.running(); len(running) > 0 {
				t.Errorf("containers run without a lease: %v", running)
			}
			if list := n.List(); len(list) > 0 {
				t.Errorf("the node has %v", list)
			}
			// With the next lease, sessions can be claimed again.
			if a, err := n.Adopt(t.Context()); err != nil || a.Released != len(keys) || a.Sessions != 0 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
}

func TestLeaseThatIsLostWhileTheEngineHangs(t *testing.T) {
	n, fake := adopting(t)
	failed := make(chan error, 1)
	go func() { _, err := n.Adopt(context.Background()); failed <- err }()
	<-fake.hanging
	before := len(fake.running())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // the budget for the kill
	defer cancel()
	n.LeaseLost(ctx)
	poll.Until(t, "the container that was opened is dead", func() bool { return len(fake.running()) == before-1 })
	if err := <-failed; !errors.Is(err, ErrLeaseLost) {
		t.Errorf("got %v", err)
	}
}

func TestAdoptThatIsCalledOffKillsNothing(t *testing.T) {
	n, fake := adopting(t)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { _, err := n.Adopt(ctx); failed <- err }()
	<-fake.hanging
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if running := fake.running(); len(running) != len(keys) {
		t.Errorf("containers still run: %v", running)
	}
}

// TestLeaseLostBeforeRun: the adopted containers are dead, and Run releases their
// sessions.
func TestLeaseLostBeforeRun(t *testing.T) {
	s, fake := memstore.New(1000), newFakeEngine(t)
	t.Cleanup(fake.close)
	set := setup{id: "n1", store: s, engine: fake, cfg: Config{Templates: []Template{anywhere(t)}}}
	first := newNode(t, set)
	first.serve(t, "alice")
	first.end()
	n, watcher := unstarted(t, set)
	if a, err := n.Adopt(t.Context()); err != nil || a.Sessions != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	n.LeaseLost(t.Context())
	if running := fake.running(); len(running) > 0 {
		t.Errorf("containers run without a lease: %v", running)
	}
	n.run(t, watcher)
	n.empty(t)
	n.serve(t, "alice")
}
