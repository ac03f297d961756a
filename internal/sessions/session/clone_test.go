package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// clone returns the configuration of a host with a copy of the kept lease.
func clone(t *testing.T, cfg LeaseConfig, host string) LeaseConfig {
	t.Helper()
	text, err := os.ReadFile(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Host, cfg.File = host, filepath.Join(t.TempDir(), "lease")
	if err := os.WriteFile(cfg.File, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// runNode is runLease with a record that says when it was written, as an agent's, and that
// changes all the time, as earlier versions wrote it.
func runNode(t *testing.T, l *Lease) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		looks := 0
		self := func() holdfast.Node {
			looks++
			return holdfast.Node{ID: l.cfg.Node, Address: l.cfg.Address, Sessions: looks, SeenAt: time.Now()}
		}
		ended <- l.Run(ctx, self, mustNotBeLost(t))
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A copy of the kept lease is not used while the agent lives. Once that agent is gone, the
// copy's host gets a lease of its own, and the first host does not get its own back. A
// restarted agent on the same host continues at once.
func TestCopiedLease(t *testing.T) {
	for name, first := range map[string]string{"of this version": "boot-1", "of an earlier version": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem, cfg := memstore.New(100), quick(t)
			cfg.Host, cfg.Address, cfg.TTL, cfg.KillBudget = first, "192.0.2.7:7070", 3*time.Second, 500*time.Millisecond
			l := NewLease(cfg, mem, testLog(t))
			if err := l.Hold(t.Context()); err != nil {
				t.Fatal(err)
			}
			stop := runNode(t, l)
			copied := clone(t, cfg, "boot-2")
			other := NewLease(copied, mem, testLog(t))
			if err := other.Hold(t.Context()); !errors.Is(err, ErrDuplicateNode) || !strings.Contains(err.Error(), cfg.Address) ||
				!strings.Contains(holdfast.HintOf(err), "new-id") || other.ID() != 0 {
				t.Errorf("the copy has lease %d, the original %d: %v", other.ID(), l.ID(), err)
			}
			stop()

			count := &slowStore{Store: mem}
			again := NewLease(cfg, count, testLog(t))
			if err := again.Hold(t.Context()); err != nil || again.ID() != l.ID() || count.tries.Load() != 1 {
				t.Errorf("the next agent has lease %d instead of %d after %d tries: %v", again.ID(), l.ID(), count.tries.Load(), err)
			}
			if first == "" {
				return // without a host in the file, a copy cannot wait for more than silence
			}
			if err := other.Hold(t.Context()); err != nil || other.ID() == l.ID() {
				t.Errorf("after the end of the original, the copy has its lease %d: %v", other.ID(), err)
			}
			defer runNode(t, other)()
			if err := NewLease(cfg, mem, testLog(t)).Hold(t.Context()); !errors.Is(err, ErrDuplicateNode) {
				t.Errorf("the original came back beside its copy: %v", err)
			}
		})
	}
}

// After an upgrade from a version that did not name the host, the agent keeps the lease,
// and from then on the file names the host.
func TestLeaseOfAnEarlierVersion(t *testing.T) {
	mem, cfg := memstore.New(100), quick(t)
	first := NewLease(cfg, mem, testLog(t))
	if err := first.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		handedOver bool
		watches    bool
	}{"after a crash": {false, true}, "after a handoff": {true, false}} {
		cfg := clone(t, cfg, "boot-1")
		cfg.HandedOver = c.handedOver
		count := &slowStore{Store: mem}
		l := NewLease(cfg, count, testLog(t))
		if err := l.Hold(t.Context()); err != nil || l.ID() != first.ID() || (count.tries.Load() > 1) != c.watches {
			t.Errorf("%s: lease %d instead of %d after %d renewals: %v", name, l.ID(), first.ID(), count.tries.Load(), err)
		}
		if h, err := l.readFile(); err != nil || h.Host != "boot-1" || h.ID != first.ID() {
			t.Errorf("%s: the file has %+v, %v", name, h, err)
		}
	}
}

// A running virtual machine is copied with its memory: two agents have one lease, boot and
// file. One of them notices that another one writes the record, and kills what it holds. The
// other one continues, and the first does not come back.
func TestClonedMemory(t *testing.T) {
	mem, cfg := memstore.New(100), quick(t)
	cfg.Host, cfg.Address, cfg.TTL = "boot-1", "192.0.2.7:7070", 3*time.Second
	cfgs := []LeaseConfig{cfg}
	type end struct {
		at  int
		err error
	}
	ended := make(chan end, 2)
	var leases [2]*Lease
	var lost [2]atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range leases {
		if i == 1 {
			cfgs = append(cfgs, clone(t, cfg, cfg.Host))
		}
		leases[i] = NewLease(cfgs[i], mem, testLog(t))
		if err := leases[i].Hold(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i, l := range leases {
		self := func() holdfast.Node { return holdfast.Node{ID: cfg.Node, Address: cfg.Address, SeenAt: time.Now()} }
		go func() { ended <- end{i, l.Run(ctx, self, func(context.Context) { lost[i].Add(1) })} }()
	}
	var first end
	select {
	case first = <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("both agents go on")
	}
	other := 1 - first.at
	if !errors.Is(first.err, ErrDuplicateNode) || lost[first.at].Load() == 0 || leases[first.at].ID() != 0 {
		t.Errorf("it ended with %v, and %d kills", first.err, lost[first.at].Load())
	}
	if err := NewLease(cfgs[first.at], mem, testLog(t)).Hold(t.Context()); !errors.Is(err, ErrDuplicateNode) {
		t.Errorf("it came back: %v", err)
	}
	if !leases[first.at].Cloned() || leases[other].Cloned() {
		t.Error("the wrong agent counts as a clone")
	}
	if len(ended) > 0 || lost[other].Load() != 0 || leases[other].ID() == 0 {
		t.Errorf("the other one has lease %d after %d kills", leases[other].ID(), lost[other].Load())
	}
	cancel()
	if last := <-ended; last.err != nil {
		t.Error(last.err)
	}
}

// Late writes, those of an earlier agent, and a record of a store that was restored are no
// clone.
func TestForeignWrites(t *testing.T) {
	at := func(n int) holdfast.Node { return holdfast.Node{SeenAt: time.Unix(int64(n), 0)} }
	for name, c := range map[string]struct {
		own  int   // the writes of this agent: 1, 2, …
		read []int // what it reads every second; over 100 are others'
		want bool
	}{
		"another agent, before the first write":   {0, []int{101, 102, 103}, false},
		"one write of an earlier agent":           {5, []int{101, 101, 101, 5}, false},
		"own writes, late and unanswered":         {64, []int{64, 3, 1, 40}, false},
		"writes of another agent, with long gaps": {5, slices.Concat([]int{101}, slices.Repeat([]int{5}, 31), []int{102}), false},
		"two writes of another agent":             {5, []int{101, 5, 102}, true},
	} {
		var w ownWrites
		for n := range c.own {
			w.add(at(n + 1).SeenAt)
		}
		got := false
		for i, n := range c.read {
			got = got || w.cloned(at(n), time.Unix(int64(i), 0), time.Second)
		}
		if got != c.want {
			t.Errorf("%s: a clone %v, want %v", name, got, c.want)
		}
	}
}

// The records under a lease that another agent has are not released.
func TestCloneReleasesNothing(t *testing.T) {
	n := newNode(t, setup{engine: newFakeEngine(t), cfg: Config{Templates: []Template{anywhere(t)}}})
	n.serve(t, "a")
	var cloned atomic.Bool
	cloned.Store(true)
	n.deps.Cloned = cloned.Load
	n.LeaseLost(t.Context())
	if r := n.records(t); len(r) != 1 {
		t.Errorf("the records are %v", r)
	}
	cloned.Store(false)
	n.empty(t)
}

// An agent whose lease is lost several times in a row, as on a host that hangs, writes its first
// record under each new lease itself. It is no clone.
func TestLeasesLostInARow(t *testing.T) {
	mem, cfg := memstore.New(100), quick(t)
	cfg.Host = "boot-1"
	l := NewLease(cfg, mem, testLog(t))
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		self := func() holdfast.Node { return holdfast.Node{ID: l.cfg.Node, SeenAt: time.Now()} }
		ended <- l.Run(ctx, self, func(context.Context) {})
	}()
	for range 4 {
		old := l.ID()
		if err := mem.Revoke(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		var since time.Time
		poll.Until(t, "the node has another lease, and has written two records under it", func() bool {
			n, err := mem.Node(t.Context(), cfg.Node)
			if err != nil || l.ID() == 0 || l.ID() == old || n.Lease != int64(l.ID()) {
				if len(ended) > 0 {
					t.Fatalf("the agent has ended: %v", <-ended)
				}
				return false
			}
			if since.IsZero() {
				since = n.SeenAt
			}
			return n.SeenAt.After(since.Add(2 * cfg.Publish))
		})
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
