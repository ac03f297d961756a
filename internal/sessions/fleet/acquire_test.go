package fleet

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
)

func TestOneNode(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		x := w.nodes[0]
		r, release, err := x.Acquire(t.Context(), key, nil)
		must(t, err)
		if r.Node != "" || r.Address != "10.0.0.1:80" || x.host.held != 1 {
			t.Errorf("route %+v with %d connections held, want one to this node", r, x.host.held)
		}
		release()
		synctest.Wait()
		if x.host.held != 0 || x.count(x.deps.Metrics.placements, "here") != 1 {
			t.Errorf("%d connections are held after the release, %d placements here", x.host.held, x.count(x.deps.Metrics.placements, "here"))
		}
	})
}

// TestBootIsAsked: a session that no node has boots only with leave, which is asked once
// for all requests that wait for that boot. A session that runs needs no leave.
func TestBootIsAsked(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		refused := errors.New("refused")
		ask := func(x *node, err error) error {
			_, release, err := x.Acquire(t.Context(), key, func() error { return err })
			if err == nil {
				release()
			}
			return err
		}
		for _, x := range w.nodes {
			if err := ask(x, refused); !errors.Is(err, refused) {
				t.Errorf("node %s: %v", x.id, err)
			}
			x.host.boot = time.Second
		}
		if n := a.host.boots + b.host.boots; n != 0 {
			t.Fatalf("%d boots", n)
		}
		var asked atomic.Int64
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				_, release, err := a.Acquire(t.Context(), key, func() error { asked.Add(1); return nil })
				if err != nil {
					t.Error(err)
					return
				}
				release()
			})
		}
		all.Wait()
		if n, boots := asked.Load(), a.host.boots+b.host.boots; n != 1 || boots != 1 {
			t.Errorf("asked %d times for %d boots", n, boots)
		}
		for _, x := range w.nodes {
			if err := ask(x, refused); err != nil {
				t.Errorf("a session that runs, by node %s: %v", x.id, err)
			}
		}
	})
}

// TestOneClaim sends requests for the same session to all nodes at once.
func TestOneClaim(t *testing.T) {
	bubble(t, 50, func(t *testing.T, w *world) {
		for _, x := range w.nodes {
			x.host.boot = time.Second
		}
		const clients = 5 // of each node
		var (
			all    sync.WaitGroup
			mu     sync.Mutex
			routes = map[holdfast.Epoch]int{}
		)
		for _, x := range w.nodes {
			for range clients {
				all.Go(func() {
					r, err := x.acquire(t, time.Minute)
					if err != nil {
						t.Errorf("node %s: %v", x.id, err)
					}
					mu.Lock()
					defer mu.Unlock()
					routes[r.Epoch]++
				})
			}
		}
		all.Wait()
		if n := bootsOf(w.nodes); n != 1 || len(routes) != 1 {
			t.Errorf("%d claims and routes by epoch %v, want one claim and one epoch", n, routes)
		}
		for _, x := range w.nodes {
			m := x.deps.Metrics
			if n := x.count(m.placements, "here") + x.count(m.placements, "there"); n > 3 {
				t.Errorf("node %s placed the session %d times for %d clients", x.id, n, clients)
			}
		}
	})
}

func TestRemoteRouteNeedsNoStore(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		a.publish(func(n *holdfast.Node) { n.Trouble = "so that b has it" })
		b.mustAcquire(t)
		r := a.mustAcquire(t)
		if r.Node != b.id || r.Address != b.record.PeerAddress || r.ContainerID != "" {
			t.Fatalf("route %+v, want one to %s at %s", r, b.id, b.record.PeerAddress)
		}
		w.store.SetHung(true)
		defer w.store.SetHung(false)
		start := time.Now()
		again := a.mustAcquire(t)
		if again.Epoch != r.Epoch || !time.Now().Equal(start) {
			t.Errorf("route %+v after %v, want the same at once", again, time.Since(start))
		}
	})
}

// TestLocalStateDoesNotHideARoute: while a session waits for its boot on this node, or
// after its boot has failed here, another node may already own it.
func TestLocalStateDoesNotHideARoute(t *testing.T) {
	for name, c := range map[string]struct {
		failed error
		later  bool // the other node claims it while the client waits
	}{
		"queued here":    {},
		"lost meanwhile": {later: true},
		"failed here":    {failed: &holdfast.BootError{Key: key, Phase: "start", Err: errors.New("no such command")}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, func(t *testing.T, w *world) {
				a, b := w.nodes[0], w.nodes[1]
				phantom := &served{err: c.failed, settled: make(chan struct{})}
				if c.failed != nil {
					close(phantom.settled)
				}
				a.host.with(func() { a.host.sessions[key] = phantom })
				b.host.boot = time.Second
				if c.later {
					time.AfterFunc(time.Second, func() { _, _ = b.host.begin(key, "") })
				} else {
					b.own(t, key)
				}
				if r := a.mustAcquire(t); r.Node != b.id {
					t.Errorf("route %+v, want one to %s", r, b.id)
				}
			})
		})
	}
}

func TestLeftClosesWhenTheOwnerLeaves(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		a.publish(func(n *holdfast.Node) { n.Trouble = "so that b has it" })
		r := a.mustAcquire(t)
		select {
		case <-r.Left:
			t.Fatal("Left is closed at once")
		default:
		}
		must(t, b.host.leave(t.Context(), key))
		<-r.Left
	})
}

// TestOwnerVanishes disconnects the owner's machine while clients wait for it to boot
// the session. Another node serves them when the owner's lease has expired.
func TestOwnerVanishes(t *testing.T) {
	for name, cut := range map[string]bool{"it refuses": false, "it is silent": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 4, func(t *testing.T, w *world) {
				for _, x := range w.nodes {
					x.host.boot = time.Hour
				}
				first := w.nodes[0]
				first.host.boot = 5 * time.Minute
				for _, x := range w.nodes[1:] {
					x.publish(func(n *holdfast.Node) { n.Trouble = "so that node 0 has it" })
				}
				var waiting sync.WaitGroup
				for _, x := range w.nodes[1:] {
					for range 3 {
						waiting.Go(func() {
							r, err := x.acquire(t, time.Minute)
							if err != nil || w.owner(x, r) == first {
								t.Errorf("node %s: route %+v, %v", x.id, r, err)
							}
						})
					}
				}
				time.Sleep(1500 * time.Millisecond)
				for _, x := range w.nodes[1:] {
					x.host.with(func() { x.host.boot = time.Second })
					x.publish(func(n *holdfast.Node) { n.Trouble = "" })
				}
				if n := bootsOf(w.nodes[:1]); n != 1 {
					t.Fatalf("the node that will vanish has %d sessions, want 1", n)
				}
				if cut {
					w.net.cut(first.record.PeerAddress, true)
				}
				first.die()
				waiting.Wait()
				if n := bootsOf(w.nodes[1:]); n != 1 {
					t.Errorf("%d claims after the owner's end, want 1", n)
				}
				time.Sleep(5 * time.Minute) // its boot ends without a waiting request
			})
		})
	}
}

// TestUnreachableOwnerIsNotOverruled: as long as its record exists, an unreachable
// node owns the session.
func TestUnreachableOwnerIsNotOverruled(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		a.publish(func(n *holdfast.Node) { n.Trouble = "so that b has it" })
		r := a.mustAcquire(t)
		w.net.cut(b.record.PeerAddress, true)
		b.server.Close()
		a.Refused(key, r)
		if _, err := a.acquire(t, 20*time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire = %v, want it to wait for the owner", err)
		}
		if n := bootsOf(w.nodes); n != 1 {
			t.Errorf("%d claims, want only the first", n)
		}
	})
}

func TestRefusedLooksPastTheCache(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		a.publish(func(n *holdfast.Node) { n.Trouble = "so that b has it" })
		first := a.mustAcquire(t)
		synctest.Wait()
		before := a.count(a.deps.Metrics.peerRequests, "ok")
		a.Refused(key, first)
		again := a.mustAcquire(t)
		synctest.Wait()
		if again.Epoch != first.Epoch || a.count(a.deps.Metrics.peerRequests, "ok") != before+1 {
			t.Errorf("route %+v; want one request to the owner, and the same route", again)
		}
		before = a.count(a.deps.Metrics.peerRequests, "ok")
		a.mustAcquire(t)
		if n := a.count(a.deps.Metrics.peerRequests, "ok"); n != before {
			t.Error("the owner received another request although it had confirmed")
		}
		r := b.mustAcquire(t)
		b.Refused(key, r)
		if b.host.refused != 1 {
			t.Error("the refusal of a route on this node did not reach Local")
		}
	})
}

// TestStartAfterAnUnreportedEnd: the session has ended, and the directory still has its
// record, because the watch is slow. Start boots the session again.
func TestStartAfterAnUnreportedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lag = time.Second
		owner, other := w.add(), w.add()
		<-other.dir.Ready()
		before := owner.own(t, key)[0]
		if r := other.mustAcquire(t); r.Epoch != before.Epoch {
			t.Fatalf("the other node's route is %+v, want epoch %d", r, before.Epoch)
		}
		must(t, owner.host.leave(t.Context(), key))
		must(t, owner.host.finish(t.Context(), key))
		after, err := other.Start(t.Context(), key, "")
		if err != nil || after.Epoch <= before.Epoch || after.State != holdfast.Ready {
			t.Errorf("Start = %+v, %v; want an epoch after %d", after, err, before.Epoch)
		}
	})
}

// TestLateAnswerDoesNotConfirmARecord: an answer to a request that was sent before the
// refusal does not make the record trusted again.
func TestLateAnswerDoesNotConfirmARecord(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		a.publish(func(n *holdfast.Node) { n.Trouble = "so that b has it" })
		answers := b.server.Handler
		b.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			late := httptest.NewRecorder()
			answers.ServeHTTP(late, r)
			time.Sleep(answerGrace / 2) // the watch is faster
			_, _ = w.Write(late.Body.Bytes())
		})
		a.Refused(key, a.mustAcquire(t))
		time.Sleep(answerGrace)
		f := a.dir.Follow(key)
		defer f.Close()
		if s, _ := f.Look(); !s.Known || !s.Suspect {
			t.Errorf("%+v, want it to be suspect still", s)
		}
		if n := a.count(a.deps.Metrics.peerRequests, "ok"); n != 1 {
			t.Errorf("%d answers arrived, want the late one", n)
		}
	})
}

func TestFullFleet(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*node)
		want   error
	}{
		"full by its records":  {func(x *node) { x.publish(func(n *holdfast.Node) { n.Max, n.Sessions = 1, 1 }) }, holdfast.ErrBusy},
		"full by its answers":  {func(x *node) { x.host.draining = false; x.host.max = 1; x.host.sessions["other"] = nil }, holdfast.ErrBusy},
		"draining by records":  {func(x *node) { x.publish(func(n *holdfast.Node) { n.Draining = true }) }, holdfast.ErrDraining},
		"draining by answers":  {func(x *node) { x.host.draining = true }, holdfast.ErrDraining},
		"no node can be asked": {func(x *node) { x.publish(func(n *holdfast.Node) { n.Trouble = "sick" }) }, holdfast.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, w *world) {
				for _, x := range w.nodes {
					x.host.with(func() { c.change(x) })
				}
				start := time.Now()
				_, err := w.nodes[0].acquire(t, 20*time.Second)
				if !errors.Is(err, c.want) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Acquire = %v, want %v", err, c.want)
				}
				if waited := time.Since(start); waited != 20*time.Second {
					t.Errorf("Acquire returned after %v, want 20s", waited)
				}
			})
		})
	}
}

func TestFullFleetGetsRoom(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		for _, x := range w.nodes {
			x.host.with(func() { x.host.draining = true })
		}
		time.AfterFunc(5*time.Second, func() { w.nodes[2].host.with(func() { w.nodes[2].host.draining = false }) })
		start := time.Now()
		r := w.nodes[0].mustAcquire(t)
		if r.Node != w.nodes[2].id || time.Since(start) > 10*time.Second {
			t.Errorf("route %+v after %v", r, time.Since(start))
		}
	})
}

func TestBootErrorReachesTheClient(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		broken := errors.New("no such command")
		for _, x := range w.nodes {
			x.host.with(func() { x.host.bootErr, x.host.boot = broken, time.Second })
		}
		for _, x := range w.nodes {
			_, err := x.acquire(t, time.Minute)
			var boot *holdfast.BootError
			if !errors.As(err, &boot) || boot.Phase != "start" || boot.Log != "last words" || boot.Err.Error() != broken.Error() {
				t.Errorf("node %s: %v, want the boot's error", x.id, err)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestClientGoesAway: the search ends with its last client, and the next one
// starts a new search.
func TestClientGoesAway(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		x := w.nodes[0]
		for _, n := range w.nodes {
			n.host.with(func() { n.host.draining = true })
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { _, _, err := x.Acquire(ctx, key, nil); done <- err }()
		time.Sleep(time.Second)
		cancel()
		if err := <-done; err == nil {
			t.Error("Acquire succeeded in a fleet that drains")
		}
		synctest.Wait()
		x.mu.Lock()
		defer x.mu.Unlock()
		if len(x.calls) != 0 || len(x.dir.topics) != 0 {
			t.Errorf("%d searches and %d followers are left", len(x.calls), len(x.dir.topics))
		}
	})
}

// TestRunEndsEverything: waiting requests get an error, and nothing runs afterwards.
func TestRunEndsEverything(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		x := w.nodes[0]
		for _, n := range w.nodes {
			n.host.with(func() { n.host.boot = time.Hour })
		}
		done := make(chan error)
		go func() { _, err := x.acquire(t, time.Hour/2); done <- err }()
		time.Sleep(time.Second)
		x.die()
		err := <-done
		if !errors.Is(err, holdfast.ErrDraining) && err != nil {
			t.Errorf("Acquire = %v, want ErrDraining", err)
		}
		if _, err := x.acquire(t, time.Second); err == nil {
			t.Error("Acquire works after Run has ended")
		}
		time.Sleep(time.Hour)
	})
}
