package fleet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// patience bounds each wait of a test in real time, so that a test cannot hang.
const patience = time.Minute

// TestOverTCP runs a fleet over loopback: many clients request many sessions from all
// nodes, while one node after another drains.
func TestOverTCP(t *testing.T) {
	w := newWorld(t)
	const nodes, sessions, clients = 5, 40, 4
	var dialer net.Dialer
	dial := func(ctx context.Context, _ holdfast.NodeID, addr string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", addr)
	}
	for i := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		x := w.make(holdfast.NodeID(fmt.Sprintf("node-%02d", i)), l.Addr().String(), dial, l)
		x.host.boot = 5 * time.Millisecond
		w.nodes = append(w.nodes, x)
		<-x.dir.Ready()
	}
	storm := func(from []*node) {
		var all sync.WaitGroup
		for _, x := range from {
			for _, k := range keys(sessions) {
				for range clients {
					all.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						defer cancel()
						if err := x.reach(ctx, k); err != nil {
							t.Errorf("node %s: %v", x.id, err)
						}
					})
				}
			}
		}
		all.Wait()
	}
	storm(w.nodes)
	if n := bootsOf(w.nodes); n != sessions {
		t.Errorf("%d claims for %d sessions", n, sessions)
	}
	var storming sync.WaitGroup
	for _, old := range w.nodes[:2] {
		storming.Go(func() { storm(w.nodes) })
		old.drain(t)
	}
	storming.Wait()
	for _, x := range w.nodes[:2] {
		x.host.with(func() {
			if n := len(x.host.sessions); n != 0 {
				t.Errorf("node %s has %d sessions after its drain", x.id, n)
			}
		})
	}
	// Sessions without a request since then boot now. After that the store has one record
	// for each, and its owner serves it. (A claim that another node wins is also visible
	// for a moment.)
	storm(w.nodes[2:3])
	owners, _, err := w.store.List(t.Context())
	must(t, err)
	if len(owners) != sessions {
		t.Errorf("%d records in the store, want %d", len(owners), sessions)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for w.live() != sessions {
		if tasks.Sleep(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("the nodes serve %d sessions, want %d", w.live(), sessions)
		}
	}
}

// reach uses a route as a gateway does. If the node refuses because it does not serve
// that epoch, reach requests the route again.
func (x *node) reach(ctx context.Context, k holdfast.SessionKey) error {
	for {
		r, release, err := x.Acquire(ctx, k, nil)
		if err != nil {
			return err
		}
		release()
		if x.w.owner(x, r).host.serves(k, r.Epoch) {
			return nil
		}
		x.Refused(k, r)
		if tasks.Sleep(ctx, time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

// live returns the number of sessions on all nodes.
func (w *world) live() (n int) {
	for _, x := range w.nodes {
		x.host.with(func() { n += len(x.host.sessions) })
	}
	return n
}

// drain hands over all sessions of the node.
func (x *node) drain(t *testing.T) {
	t.Helper()
	x.host.with(func() { x.host.draining = true })
	x.publish(func(n *holdfast.Node) { n.Draining = true })
	for {
		moves := x.moves()
		booting := false
		x.host.with(func() { booting = len(x.host.sessions) > len(moves) })
		if len(moves) == 0 && !booting {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		x.Prepare(ctx, moves)
		cancel()
		for _, m := range moves {
			must(t, x.host.leave(t.Context(), m.Key))
			must(t, x.host.finish(t.Context(), m.Key))
		}
	}
}
