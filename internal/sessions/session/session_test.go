package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/store"
	"holdfast/test/lab/labtest"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

func TestSessionIsBootedOnceAndToldWhoItIs(t *testing.T) {
	n := newNode(t, setup{})
	var wg sync.WaitGroup
	routes := make([]holdfast.Route, 20)
	for i := range routes {
		wg.Go(func() { routes[i] = n.serve(t, "alice") })
	}
	wg.Wait()
	for _, r := range routes {
		if r.ContainerID != routes[0].ContainerID || r.Epoch != routes[0].Epoch {
			t.Errorf("routes differ: %+v and %+v", r, routes[0])
		}
	}
	list := n.containers(t)
	if len(list) != 1 {
		t.Fatalf("%d containers for one key", len(list))
	}
	c, err := n.engine.Inspect(t.Context(), list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	env := strings.Join(c.Env, "\n")
	for _, want := range []string{"HOLDFAST_SESSION=alice", "HOLDFAST_EPOCH=" + strconv.Itoa(int(routes[0].Epoch))} {
		if !strings.Contains(env, want) {
			t.Errorf("the container has no %s", want)
		}
	}
	if c.Restart != engine.RestartNo {
		t.Errorf("restart policy %q", c.Restart)
	}
	if err := answers(routes[0]); err != nil {
		t.Error(err)
	}
	if r := n.records(t)[0]; r.State != holdfast.Ready || r.ContainerID != c.ID || r.Epoch != routes[0].Epoch {
		t.Errorf("record %+v", r)
	}
}

func TestManyKeysAtOnce(t *testing.T) {
	n := newNode(t, setup{})
	keys := labtest.Count(10, 20)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			if err := answers(n.serve(t, holdfast.SessionKey(fmt.Sprintf("k%d", i)))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, c := range n.containers(t) {
		seen[c.Labels[LabelSession]] = true
	}
	if len(seen) != keys || len(n.containers(t)) != keys {
		t.Errorf("%d containers for %d of %d keys", len(n.containers(t)), len(seen), keys)
	}
}

func TestStopSeesTheContainerDeadAndGivesItUp(t *testing.T) {
	n := newNode(t, setup{})
	r := n.serve(t, "alice")
	report, err := n.Stop(t.Context(), "alice")
	if err != nil || len(report.Dead) != 1 || report.Dead[0] != r.ContainerID {
		t.Fatalf("stop: %+v, %v", report, err)
	}
	select {
	case <-r.Left:
	default:
		t.Error("the route's Left is not closed")
	}
	if answers(r) == nil {
		t.Error("the container still answers")
	}
	n.empty(t)
	if _, err := n.Stop(t.Context(), "alice"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("stopping it again: %v", err)
	}
	if again := n.serve(t, "alice"); again.Epoch <= r.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, r.Epoch)
	}
}

func TestContainerThatEndsIsGivenUp(t *testing.T) {
	n := newNode(t, setup{})
	r := n.serve(t, "alice")
	if err := n.engine.Kill(t.Context(), r.ContainerID); err != nil {
		t.Fatal(err)
	}
	<-r.Left
	again := n.serve(t, "alice")
	if again.Epoch <= r.Epoch || again.ContainerID == r.ContainerID {
		t.Errorf("after %+v came %+v", r, again)
	}
	if err := answers(again); err != nil {
		t.Error(err)
	}
}

// bootFails boots a template that cannot boot, and returns the error.
func bootFails(t *testing.T, change func(*Template)) *holdfast.BootError {
	t.Helper()
	tmpl := web()
	change(&tmpl)
	n := newNode(t, setup{cfg: Config{Templates: []Template{tmpl}}})
	_, _, err := n.Acquire(t.Context(), "alice", "")
	var boot *holdfast.BootError
	if !errors.As(err, &boot) {
		t.Fatalf("got %v, want a BootError", err)
	}
	n.empty(t)
	return boot
}

func TestBootThatFailsSaysWhyAndLeavesNothing(t *testing.T) {
	t.Run("exits", func(t *testing.T) {
		e := bootFails(t, func(x *Template) { x.Env = map[string]string{"TESTSERVER_FAIL": "no disk for {key}"} })
		if e.Phase != "ready" && e.Phase != "start" || !strings.Contains(e.Error(), "exit code 1") || !strings.Contains(e.Log, "no disk for alice") {
			t.Errorf("%v; log %q", e, e.Log)
		}
	})
	t.Run("not ready in time", func(t *testing.T) {
		e := bootFails(t, func(x *Template) {
			x.Ready.Timeout = 300 * time.Millisecond
			x.Env = map[string]string{"TESTSERVER_DELAY": "1h"}
		})
		if e.Phase != "ready" || !strings.Contains(e.Error(), "not ready after") || holdfast.HintOf(e) == "" {
			t.Errorf("%v", e)
		}
	})
	t.Run("wrong path", func(t *testing.T) {
		e := bootFails(t, func(x *Template) { x.Ready = Readiness{HTTPPath: "/ws", Timeout: 3 * time.Second} })
		if !strings.Contains(e.Error(), "GET ") {
			t.Errorf("%v does not contain the request", e)
		}
	})
	t.Run("missing image", func(t *testing.T) {
		e := bootFails(t, func(x *Template) { x.Image = "nowhere/nothing:1" })
		if e.Phase != "pull" || !strings.Contains(e.Error(), "nowhere/nothing:1") || holdfast.HintOf(e) == "" {
			t.Errorf("%v (hint %q)", e, holdfast.HintOf(e))
		}
	})
	t.Run("missing mount", func(t *testing.T) {
		e := bootFails(t, func(x *Template) {
			x.Mounts = []engine.Mount{{Type: "bind", Source: "/nowhere/{key}", Target: "/data"}}
		})
		if !strings.Contains(e.Error(), "/nowhere/alice") {
			t.Errorf("%v", e)
		}
	})
}

func TestFailedBootAnswersForAMomentOnly(t *testing.T) {
	tmpl := web()
	tmpl.Image = "nowhere/nothing:1"
	n := newNode(t, setup{cfg: Config{Templates: []Template{tmpl}}})
	_, _, first := n.Acquire(t.Context(), "alice", "")
	poll.Until(t, "the failed boot is rolled back", func() bool { i, err := n.Get("alice"); return err == nil && i.Error != "" && len(n.records(t)) == 0 })
	_, _, again := n.Acquire(t.Context(), "alice", "")
	if first == nil || again == nil || first.Error() != again.Error() {
		t.Errorf("first %v, at once again %v", first, again)
	}
	poll.Until(t, "the error is forgotten", func() bool { _, err := n.Get("alice"); return errors.Is(err, holdfast.ErrNotFound) })
}

func TestIdleSessionsStopAndBusyOnesDoNot(t *testing.T) {
	n := newNode(t, setup{cfg: Config{IdleStop: 300 * time.Millisecond}})
	busy, release, err := n.Acquire(t.Context(), "busy", "")
	if err != nil {
		t.Fatal(err)
	}
	idle := n.serve(t, "idle")
	<-idle.Left
	time.Sleep(time.Second) // several times the limit
	if err := answers(busy); err != nil {
		t.Errorf("the session with a connection: %v", err)
	}
	release()
	<-busy.Left
	n.empty(t)
}

func TestStopDuringABoot(t *testing.T) {
	tmpl := web()
	tmpl.Env = map[string]string{"TESTSERVER_DELAY": "1h"}
	n := newNode(t, setup{cfg: Config{Templates: []Template{tmpl}}})
	failed := make(chan error, 1)
	go func() { _, _, err := n.Acquire(context.Background(), "alice", ""); failed <- err }()
	poll.Until(t, "the container runs", func() bool { l := n.containers(t); return len(l) == 1 && l[0].State == "running" })
	if _, err := n.Stop(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, errStopped) {
		t.Errorf("the waiting request got %v", err)
	}
	n.empty(t)
}

func TestBounds(t *testing.T) {
	n := newNode(t, setup{cfg: Config{Max: 1}})
	n.serve(t, "alice")
	if _, _, err := n.Acquire(t.Context(), "bob", ""); !errors.Is(err, holdfast.ErrBusy) || holdfast.HintOf(err) == "" {
		t.Errorf("a session over the limit: %v", err)
	}
	if _, err := n.Start(t.Context(), "alice", "web"); err != nil {
		t.Errorf("the session that runs: %v", err)
	}
	if _, err := n.Stop(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	// An orphan record whose release waits for the store is not a session.
	n.store.SetHung(true)
	defer n.store.SetHung(false)
	n.ReclaimOrphan(holdfast.Owner{Key: "ghost", Node: n.cfg.Node, Epoch: 1, State: holdfast.Leaving})
	if _, err := n.Start(t.Context(), "bob", "other"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("an unknown template: %v", err)
	}
}

func TestAcquireEndsWithItsCaller(t *testing.T) {
	tmpl := web()
	tmpl.Env = map[string]string{"TESTSERVER_DELAY": "700ms"}
	n := newNode(t, setup{cfg: Config{Templates: []Template{tmpl}}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := n.Acquire(ctx, "alice", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	// The boot continues, and the next request finds it.
	if err := answers(n.serve(t, "alice")); err != nil {
		t.Error(err)
	}
}

// slowRemoval is an engine whose removals take a tenth of a second.
type slowRemoval struct{ *fakeEngine }

func (s slowRemoval) Remove(ctx context.Context, id string) error {
	select {
	case <-time.After(100 * time.Millisecond):
		return s.fakeEngine.Remove(ctx, id)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// silentStore is a store that does not answer a Get while it is silent.
type silentStore struct {
	store.Store
	silent atomic.Bool
	asked  chan struct{} // closed by the first Get that is not answered
}

func (s *silentStore) Get(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	if s.silent.CompareAndSwap(true, false) {
		close(s.asked)
		<-ctx.Done()
		return holdfast.Owner{}, fmt.Errorf("get: no answer: %w", holdfast.ErrStore)
	}
	return s.Store.Get(ctx, key)
}

// A manager that ends without sessions first removes the containers of those that it has
// stopped, also while it looks up a record that a late event of the store's watch has shown.
func TestRemovesAtTheEnd(t *testing.T) {
	fake := newFakeEngine(t)
	t.Cleanup(fake.close)
	mem := memstore.New(1000)
	late := &silentStore{Store: mem, asked: make(chan struct{})}
	n := newNode(t, setup{engine: slowRemoval{fake}, faulty: late, store: mem, cfg: Config{Templates: []Template{anywhere(t)}}})
	const many = 6
	for i := range many {
		key := holdfast.SessionKey(fmt.Sprintf("key-%d", i))
		_, release, err := n.Acquire(t.Context(), key, "")
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	for i := range many {
		if _, err := n.Stop(t.Context(), holdfast.SessionKey(fmt.Sprintf("key-%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	late.silent.Store(true)
	n.ReclaimOrphan(holdfast.Owner{Key: "key-0", Node: n.cfg.Node, Epoch: 1})
	<-late.asked
	n.end()
	if left := n.containers(t); len(left) > 0 {
		t.Errorf("%d of %d containers are left", len(left), many)
	}
}
