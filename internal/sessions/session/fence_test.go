package session

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// TestFence makes the store unavailable for less and for more than the fence.
func TestFence(t *testing.T) {
	mem, fake := memstore.New(1000), newFakeEngine(t)
	lease := NewLease(LeaseConfig{
		File: filepath.Join(t.TempDir(), "lease"), TTL: 10 * time.Second,
		Renew: 50 * time.Millisecond, Publish: time.Second, Fence: time.Second, KillBudget: 2 * time.Second,
	}, mem, testLog(t))
	if err := lease.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, setup{store: mem, engine: fake, held: lease, cfg: Config{Templates: []Template{anywhere(t)}}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- lease.Run(ctx, func() holdfast.Node { return holdfast.Node{ID: n.cfg.Node} }, n.LeaseLost)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	r := n.serve(t, "alice")

	mem.SetHung(true)
	time.Sleep(300 * time.Millisecond) // well under the fence
	mem.SetHung(false)
	time.Sleep(1500 * time.Millisecond) // long enough for a fence that did not see the renewals
	if got := n.serve(t, "alice"); got.Epoch != r.Epoch {
		t.Errorf("a short outage ended the session: epoch %d became %d", r.Epoch, got.Epoch)
	}

	mem.SetHung(true)
	<-r.Left
	poll.Until(t, "the container is dead", func() bool { return len(fake.running()) == 0 })
	if id := lease.ID(); id != 0 {
		t.Errorf("claims continue under lease %d", id)
	}
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if _, _, err := n.Acquire(short, "bob", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a session of a node without its store: %v", err)
	}
	mem.SetHung(false)
	// The container was dead before the lease could expire, so the lease still exists.
	if err := mem.KeepAlive(t.Context(), lease.held.Load().ID); err != nil {
		t.Errorf("the lease: %v", err)
	}
	if again := n.serve(t, "alice"); again.Epoch <= r.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, r.Epoch)
	}
	n.serve(t, "bob") // the request was not dropped
}
