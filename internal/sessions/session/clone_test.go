package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/memstore"
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

// runNode is runLease with a record that says when it was written, as an agent's.
func runNode(t *testing.T, l *Lease) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		self := func() holdfast.Node { return holdfast.Node{ID: l.cfg.Node, Address: l.cfg.Address, SeenAt: time.Now()} }
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
