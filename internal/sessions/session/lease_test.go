package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// slowStore is a store whose renewals are slow, or hang until their caller gives up.
type slowStore struct {
	store.Store
	hang  atomic.Int32 // this many renewals from now on
	delay atomic.Int64 // of each answer
	tries atomic.Int32
}

func (s *slowStore) KeepAlive(ctx context.Context, id store.LeaseID) error {
	s.tries.Add(1)
	if s.hang.Add(-1) >= 0 {
		<-ctx.Done()
		return holdfast.ErrStore
	}
	err := s.Store.KeepAlive(ctx, id)
	time.Sleep(time.Duration(s.delay.Load()))
	return err
}

// quick returns a timing for tests that wait for the fence.
func quick(t *testing.T) LeaseConfig {
	return LeaseConfig{
		Node: "a", File: filepath.Join(t.TempDir(), "lease"), TTL: 5 * time.Second,
		Renew: 50 * time.Millisecond, Publish: 50 * time.Millisecond, Fence: 2 * time.Second, KillBudget: time.Second,
	}
}

// runLease runs a lease that is held until the test ends.
func runLease(t *testing.T, l *Lease, lost func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx, func() holdfast.Node { return holdfast.Node{ID: l.cfg.Node} }, lost) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func mustNotBeLost(t *testing.T) func(context.Context) {
	return func(context.Context) { t.Error("the lease was lost") }
}

// The deadman receives the sending time, not the answer's time, of each renewal from
// the first one on.
func TestDeadlineIsToldWithEachRenewal(t *testing.T) {
	cfg := quick(t)
	cfg.Fence = time.Minute // this test does not wait for it
	var mu sync.Mutex
	var told []boottime.Instant
	cfg.Deadline = func(d boottime.Instant) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, d)
	}
	slow := &slowStore{Store: memstore.New(100)}
	l := NewLease(cfg, slow, testLog(t))
	before := boottime.Now()
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := boottime.Now(); len(told) != 1 || told[0] < before.Add(cfg.timing().Deadline()) || told[0] > after.Add(cfg.timing().Deadline()) {
		t.Fatalf("deadline %v after %v", told, before)
	}
	slow.delay.Store(int64(300 * time.Millisecond))
	runLease(t, l, mustNotBeLost(t))
	poll.Until(t, "the deadman receives renewals", func() bool { mu.Lock(); defer mu.Unlock(); return len(told) > 5 })
	mu.Lock()
	defer mu.Unlock()
	if last := told[len(told)-1]; last > boottime.Now().Add(cfg.timing().Deadline()-300*time.Millisecond) {
		t.Error("the deadline counts from the answer")
	}
	if !slices.IsSorted(told) {
		t.Errorf("the deadline went back: %v", told)
	}
}

// A connection that hangs, or a store that answers late, is not an outage.
func TestHungRenewalsDoNotEatTheFence(t *testing.T) {
	cfg := quick(t)
	cfg.Fence, cfg.TTL = 10*time.Second, 20*time.Second
	slow := &slowStore{Store: memstore.New(100)}
	l := NewLease(cfg, slow, testLog(t))
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := l.held.Load()
	slow.hang.Store(maxTries - 1)
	begun := boottime.Now()
	runLease(t, l, mustNotBeLost(t))
	poll.Until(t, "a later renewal succeeds while earlier ones hang", func() bool { return held.good.Load() > int64(begun) })
	if waited := -begun.Until(); waited > cfg.Fence/2 {
		t.Errorf("the lease was renewed after %v, only when the renewals that hung had timed out", waited)
	}
}

// While the lease cannot be renewed, the agent kills what it holds, again and again
// until everything is dead.
func TestFenceGoesOnUntilAllIsEnded(t *testing.T) {
	mem, cfg := memstore.New(100), quick(t)
	cfg.KillBudget = 100 * time.Millisecond
	l := NewLease(cfg, mem, testLog(t))
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := l.ID()
	var lost atomic.Int32
	runLease(t, l, func(ctx context.Context) {
		if lost.Add(1) < 3 {
			<-ctx.Done() // a container does not die
		}
	})
	mem.SetHung(true)
	poll.Until(t, "lost is called three times", func() bool { return lost.Load() == 3 })
	time.Sleep(10 * minRetry)
	if n := lost.Load(); n != 3 {
		t.Errorf("lost was called %d times although everything was dead", n)
	}
	if got := l.ID(); got != 0 {
		t.Errorf("claims continue under lease %d", got)
	}
	mem.SetHung(false)
	poll.Until(t, "the node has a lease again", func() bool { return l.ID() != 0 })
	if mem.KeepAlive(t.Context(), id) == nil && l.ID() != id {
		t.Error("the node took another lease although the old one is valid")
	}
}

// A lease that is gone from the store is replaced only after everything under it is
// dead.
func TestGoneLeaseIsReplaced(t *testing.T) {
	cfg := quick(t)
	mem := memstore.New(100)
	l := NewLease(cfg, mem, testLog(t))
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := l.ID()
	var lost atomic.Int32
	runLease(t, l, func(context.Context) {
		if id := l.ID(); id != 0 {
			t.Errorf("claims continue under lease %d", id)
		}
		lost.Add(1)
	})
	if err := mem.Revoke(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the node has another lease", func() bool { id := l.ID(); return id != 0 && id != old })
	if lost.Load() == 0 {
		t.Error("lost was not called")
	}
	poll.Until(t, "its record belongs to the new lease", func() bool {
		nodes, err := mem.Nodes(t.Context())
		return err == nil && len(nodes) == 1 && nodes[0].Lease == int64(l.ID())
	})
	again := NewLease(cfg, mem, testLog(t))
	if err := again.Hold(t.Context()); err != nil || again.ID() != l.ID() {
		t.Errorf("the next agent has lease %d, not %d: %v", again.ID(), l.ID(), err)
	}
}

// With two hosts of one id, the second one waits for the lifetime of a lease and then
// fails. If the record disappears meanwhile, it was this node's own.
// A running agent gets a new lease also if its disk is full, and keeps it for the next agent
// as soon as there is space.
func TestGoneLeaseIsReplacedOnAFullDisk(t *testing.T) {
	mem := memstore.New(100)
	l := NewLease(quick(t), mem, testLog(t))
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := l.ID()
	var lost atomic.Int32
	runLease(t, l, func(context.Context) { lost.Add(1) })
	if err := os.RemoveAll(filepath.Dir(l.cfg.File)); err != nil { // no file can be written there
		t.Fatal(err)
	}
	if err := mem.Revoke(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "there is a new lease", func() bool { id := l.ID(); return id != 0 && id != old })
	poll.Until(t, "the node's record is under it", func() bool {
		n, err := mem.Node(t.Context(), l.cfg.Node)
		return err == nil && n.Lease == int64(l.ID())
	})
	if lost.Load() == 0 {
		t.Error("what the old lease held was not ended")
	}
	if err := os.Mkdir(filepath.Dir(l.cfg.File), 0o700); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the lease is kept", func() bool { _, err := os.Stat(l.cfg.File); return err == nil })
	next := NewLease(l.cfg, mem, testLog(t))
	if err := next.Hold(t.Context()); err != nil || next.ID() != l.ID() {
		t.Errorf("the next agent has lease %d, not %d: %v", next.ID(), l.ID(), err)
	}
}

func TestTwin(t *testing.T) {
	mem := memstore.New(100)
	cfg := quick(t)
	cfg.TTL, cfg.Fence, cfg.KillBudget = time.Second, 500*time.Millisecond, 200*time.Millisecond
	other, _, err := mem.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	twin := holdfast.Node{ID: "a", Address: "192.0.2.7:7070", Lease: int64(other)}
	if err := mem.PutNode(t.Context(), twin, other); err != nil {
		t.Fatal(err)
	}
	l := NewLease(cfg, mem, testLog(t))
	err = l.Hold(t.Context())
	if !errors.Is(err, ErrDuplicateNode) || !strings.Contains(err.Error(), twin.Address) || holdfast.HintOf(err) == "" || l.ID() != 0 {
		t.Errorf("beside a duplicate node: %v (%q), lease %d", err, holdfast.HintOf(err), l.ID())
	}
	time.AfterFunc(200*time.Millisecond, func() {
		if err := mem.Revoke(context.Background(), other); err != nil {
			t.Error(err)
		}
	})
	if err := l.Hold(t.Context()); err != nil || l.ID() == 0 {
		t.Errorf("after the end of the other agent: %v", err)
	}
}

// After a restore of the store the node's record is under an earlier lease of this node,
// and the present lease is gone. That is not another agent.
func TestRestoredNodeRecordIsNoDuplicate(t *testing.T) {
	mem, cfg := memstore.New(100), quick(t)
	cfg.TTL, cfg.Fence, cfg.KillBudget = time.Second, 500*time.Millisecond, 200*time.Millisecond
	cfg.Renew = 200 * time.Millisecond // so that the record is mostly written first
	l := NewLease(cfg, mem, testLog(t))
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := l.ID()
	restore := mem.Backup()
	if err := mem.Revoke(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := l.ID()
	runLease(t, l, func(context.Context) {})
	restore()
	poll.Until(t, "the node has a third lease", func() bool { id := l.ID(); return id != 0 && id != first && id != second })
}

// A lease with a shorter TTL than configured keeps its own fence. A lease with a longer
// TTL gets the configured fence.
func TestKeptLeaseKeepsItsTiming(t *testing.T) {
	for name, c := range map[string]struct {
		ttl       time.Duration // in the later configuration
		wantFence time.Duration
	}{
		"the new one is longer":  {60 * time.Second, 2 * time.Second},
		"the new one is shorter": {4 * time.Second, 30 * time.Second},
	} {
		mem, cfg := memstore.New(100), quick(t)
		if err := NewLease(cfg, mem, testLog(t)).Hold(t.Context()); err != nil {
			t.Fatal(err)
		}
		cfg.TTL, cfg.Fence = c.ttl, 30*time.Second
		l := NewLease(cfg, mem, testLog(t))
		if err := l.Hold(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := l.held.Load().Timing.Fence; got != c.wantFence {
			t.Errorf("%s: the fence is %v, want %v", name, got, c.wantFence)
		}
	}
}

// An agent starts although the lease file cannot be read.
func TestSpoiltLeaseFile(t *testing.T) {
	cfg := quick(t)
	if err := os.WriteFile(cfg.File, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l := NewLease(cfg, memstore.New(100), testLog(t)); l.Hold(t.Context()) != nil || l.ID() == 0 {
		t.Error("the node has no lease")
	}
}
