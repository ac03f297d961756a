package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
)

// own makes a node serve sessions, and returns them as moves.
func (x *node) own(t *testing.T, keys ...holdfast.SessionKey) []Departing {
	t.Helper()
	var moves []Departing
	for _, k := range keys {
		_, release, err := x.host.Acquire(t.Context(), k, "demo")
		must(t, err)
		release()
		moves = append(moves, DepartingOf(x.host.sessions[k].owner, false))
	}
	synctest.Wait()
	return moves
}

func keys(n int) (all []holdfast.SessionKey) {
	for i := range n {
		all = append(all, holdfast.SessionKey(fmt.Sprintf("k%03d", i)))
	}
	return all
}

// TestPlannedMove drains a node. The successor of each session claims it immediately
// after its release, and not before.
func TestPlannedMove(t *testing.T) {
	bubble(t, 4, func(t *testing.T, w *world) {
		old, successors := w.nodes[0], w.nodes[1:]
		moves := old.own(t, keys(60)...)
		old.publish(func(n *holdfast.Node) { n.Draining = true })
		var mu sync.Mutex
		fetched := map[string]int{}
		for _, x := range successors {
			x.fetch = func(_ context.Context, name string) error {
				mu.Lock()
				defer mu.Unlock()
				fetched[name]++
				return nil
			}
		}
		if n := old.Prepare(t.Context(), moves); n != len(moves) {
			t.Fatalf("%d of %d sessions have a successor", n, len(moves))
		}
		if fetched["demo"] != len(successors) || len(fetched) != 1 {
			t.Errorf("fetched %v, want demo once by each of %d", fetched, len(successors))
		}
		for _, x := range successors {
			if n := len(x.next.byKey); n < 10 || n > 30 {
				t.Errorf("node %s expects %d of 60 sessions", x.id, n)
			}
		}
		time.Sleep(5 * time.Second)
		if n := bootsOf(successors); n != 0 {
			t.Fatalf("%d were claimed while their owner served them", n)
		}
		released := time.Now()
		for _, m := range moves {
			must(t, old.host.leave(t.Context(), m.Key))
			must(t, old.host.finish(t.Context(), m.Key))
		}
		synctest.Wait()
		if n := bootsOf(successors); n != len(moves) || !time.Now().Equal(released) {
			t.Errorf("%d of %d were claimed at once", n, len(moves))
		}
		claimed := 0
		for _, x := range successors {
			claimed += x.count(x.deps.Metrics.handovers, "claimed")
			if n := len(x.next.byKey); n != 0 || x.host.lastTemplate() != "demo" {
				t.Errorf("node %s still expects %d; its last template was %q", x.id, n, x.host.lastTemplate())
			}
		}
		if claimed != len(moves) {
			t.Errorf("%d handovers are counted", claimed)
		}
	})
}

// TestSuccessorComesFirst: a request for a session that moves as planned leaves it to
// the successor, and places it after handoffGrace if the successor does not claim it.
func TestSuccessorComesFirst(t *testing.T) {
	for name, told := range map[string]bool{"told": true, "not told": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, w *world) {
				old, asks := w.nodes[0], w.nodes[1]
				moves := old.own(t, key)
				old.publish(func(n *holdfast.Node) { n.Draining = true })
				if told && old.Prepare(t.Context(), moves) != 1 {
					t.Fatal("the session has no successor")
				}
				must(t, old.host.leave(t.Context(), key))
				synctest.Wait()
				done := make(chan error)
				go func() { _, err := asks.acquire(t, time.Minute); done <- err }()
				time.Sleep(10 * time.Second)
				released := time.Now()
				must(t, old.host.finish(t.Context(), key))
				must(t, <-done)
				waited := time.Since(released)
				if told && waited != 0 {
					t.Errorf("it was served after %v, want the successor to serve it at once", waited)
				}
				if !told && (waited < handoffGrace || waited > 2*handoffGrace) {
					t.Errorf("it was served after %v, want about %v", waited, handoffGrace)
				}
				if n := bootsOf(w.nodes[1:]); n != 1 {
					t.Errorf("%d claims", n)
				}
				if told && asks.count(asks.deps.Metrics.placements, "here")+asks.count(asks.deps.Metrics.placements, "there") != 0 {
					t.Error("the gateway placed it although there was a successor")
				}
			})
		})
	}
}

// TestSuspendedSessionHasNoSuccessor: a session that was just suspended has no successor to
// wait for. It continues on the node with its image.
func TestSuspendedSessionHasNoSuccessor(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		old, asks := w.nodes[0], w.nodes[1]
		old.own(t, key)
		must(t, old.host.leave(t.Context(), key))
		synctest.Wait()
		asks.prefer = old.id
		must(t, old.host.finish(t.Context(), key))
		synctest.Wait()
		start := time.Now()
		if o := w.owner(asks, asks.mustAcquire(t)); o != old {
			t.Errorf("the session is on %s", o.id)
		}
		if waited := time.Since(start); waited > lookupDelay {
			t.Errorf("it was placed after %v", waited)
		}
	})
}

// TestFormerOwnerDies: the owner dies without a release, and its lease expires.
func TestFormerOwnerDies(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		old := w.nodes[0]
		moves := old.own(t, keys(10)...)
		old.publish(func(n *holdfast.Node) { n.Draining = true })
		if n := old.Prepare(t.Context(), moves); n != len(moves) {
			t.Fatalf("%d have a successor", n)
		}
		old.die()
		time.Sleep(ttl / 2)
		if n := bootsOf(w.nodes[1:]); n != 0 {
			t.Errorf("%d were claimed before the lease expired", n)
		}
		time.Sleep(ttl)
		if n := bootsOf(w.nodes[1:]); n != len(moves) {
			t.Errorf("%d of %d were claimed", n, len(moves))
		}
	})
}

// TestRefusedSessionsAreDistributedAgain: a node may drain or be full before its record
// shows it.
func TestRefusedSessionsAreDistributedAgain(t *testing.T) {
	for name, refuse := range map[string]func(*node){
		"it drains":  func(x *node) { x.host.draining = true },
		"it is full": func(x *node) { x.next.put("other", expectable(maxExpected-3), time.Now().Add(time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, w *world) {
				old, unable, successor := w.nodes[0], w.nodes[1], w.nodes[2]
				moves := old.own(t, keys(40)...)
				refuse(unable)
				before := len(unable.next.byKey)
				if n := old.Prepare(t.Context(), moves); n != len(moves) {
					t.Errorf("%d of %d have a successor", n, len(moves))
				}
				if a, b := len(unable.next.byKey)-before, len(successor.next.byKey); a > 3 || a+b != len(moves) {
					t.Errorf("%d and %d are expected of %d", a, b, len(moves))
				}
			})
		})
	}
}

func expectable(n int) (all []Departing) {
	for i := range n {
		all = append(all, Departing{Key: holdfast.SessionKey(fmt.Sprint("x", i)), Epoch: 1 << 40})
	}
	return all
}

// TestManyTemplates announces more templates than one request may contain.
func TestManyTemplates(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		old, successor := w.nodes[0], w.nodes[1]
		moves := old.own(t, keys(2*maxTemplates+2)...)
		for i := range moves {
			moves[i].Template = fmt.Sprint("t", i%(maxTemplates+1))
		}
		if n := old.Prepare(t.Context(), moves); n != len(moves) || len(successor.next.byKey) != len(moves) {
			t.Errorf("%d of %d have a successor, which expects %d", n, len(moves), len(successor.next.byKey))
		}
	})
}

// TestExpiredAnnouncementBootsNothing: an announcement may expire before its claim
// starts.
func TestExpiredAnnouncementBootsNothing(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		x := w.nodes[0]
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		late := expectation{Departing: Departing{Key: key, Epoch: 1}, from: "old", until: time.Now()}
		x.next.claim(t.Context(), &late)
		late.until = time.Now().Add(time.Hour)
		x.next.claim(ended, &late)
		synctest.Wait()
		if n := bootsOf(w.nodes); n != 0 || x.count(x.deps.Metrics.handovers, "expired") != 2 {
			t.Errorf("%d boots, %d expired", n, x.count(x.deps.Metrics.handovers, "expired"))
		}
	})
}

// TestSilentSuccessorIsReplaced: other nodes get its sessions before the deadline.
func TestSilentSuccessorIsReplaced(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		old, deaf := w.nodes[0], w.nodes[1]
		moves := old.own(t, keys(20)...)
		w.net.cut(deaf.record.PeerAddress, true)
		start := time.Now()
		n := old.Prepare(t.Context(), moves)
		if took := time.Since(start); took > prepareTime {
			t.Errorf("it took %v", took)
		}
		if heard := len(w.nodes[2].next.byKey); n != len(moves) || n != heard {
			t.Errorf("Prepare counts %d of %d sessions with a successor, the successors received %d", n, len(moves), heard)
		}
	})
}

func TestPrepareOnTheOnlyNode(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		if n := w.nodes[0].Prepare(t.Context(), w.nodes[0].own(t, key)); n != 0 {
			t.Errorf("%d successors in a fleet of one", n)
		}
	})
}

// TestSlowImages: the answer waits for images no longer than requested.
func TestSlowImages(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		old, successor := w.nodes[0], w.nodes[1]
		var began atomic.Int32
		successor.fetch = func(ctx context.Context, _ string) error {
			began.Add(1)
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		moves := old.own(t, keys(5)...)
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		if n := old.Prepare(ctx, moves); n != len(moves) || ctx.Err() != nil {
			t.Errorf("%d have a successor; %v", n, ctx.Err())
		}
		if n := old.Prepare(t.Context(), moves); n != len(moves) || began.Load() != 1 {
			t.Errorf("%d have a successor; the images were fetched %d times at once", n, began.Load())
		}
	})
}

func TestExpectationsEnd(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		old, successor := w.nodes[0], w.nodes[1]
		moves := old.own(t, keys(3)...)
		old.Prepare(t.Context(), moves)
		time.Sleep(2 * AnnouncementTTL)
		for _, m := range moves {
			must(t, old.host.finish(t.Context(), m.Key))
		}
		synctest.Wait()
		if successor.host.boots != 0 || len(successor.next.byKey) != 0 || successor.count(successor.deps.Metrics.handovers, "expired") != 3 {
			t.Errorf("%d boots, %d expected", successor.host.boots, len(successor.next.byKey))
		}
	})
}

func TestExpectationsAreBounded(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		x := w.nodes[0]
		var many []Departing
		for i := range maxExpected + 10 {
			many = append(many, Departing{Key: holdfast.SessionKey(fmt.Sprint("k", i)), Epoch: 1 << 40})
		}
		if n := x.next.add("other", many); n != maxExpected {
			t.Errorf("%d were accepted, want %d", n, maxExpected)
		}
		if n := x.next.add("other", many[:5]); n != 5 {
			t.Errorf("%d of those that were already announced", n)
		}
	})
}

// TestClientsComeFirst: sessions with clients are claimed before the others.
func TestClientsComeFirst(t *testing.T) {
	x := newExpected(New(Config{Node: "a"}, Deps{Metrics: testDirectory(nil).metrics, Log: testLog()}))
	x.put("old", []Departing{{Key: "idle1", Epoch: 1}, {Key: "idle2", Epoch: 1}, {Key: "busy", Epoch: 1, Connected: true}, {Key: "moved", Epoch: 1, Connected: true}}, time.Now().Add(time.Minute))
	for _, k := range []holdfast.SessionKey{"idle1", "unknown", "idle2", "busy"} {
		x.gone(k, 1)
	}
	x.gone("moved", 2) // another node owned it meanwhile
	for _, want := range []holdfast.SessionKey{"busy", "idle1", "idle2"} {
		if e := x.pop(); e == nil || e.Key != want {
			t.Fatalf("%+v, want %s", e, want)
		}
	}
	if e := x.pop(); e != nil || len(x.byKey) != 0 {
		t.Errorf("%+v and %d more are left", e, len(x.byKey))
	}
}

// TestStoreOutageDuringHandover: the claim is repeated until the store is back.
func TestStoreOutageDuringHandover(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		old, successor := w.nodes[0], w.nodes[1]
		moves := old.own(t, key)
		if old.Prepare(t.Context(), moves) != 1 {
			t.Fatal("the session has no successor")
		}
		must(t, old.host.finish(t.Context(), key))
		w.store.SetDown(true) // before the watch has reported it
		time.Sleep(5 * time.Second)
		w.store.SetDown(false)
		time.Sleep(5 * time.Second)
		if n := bootsOf([]*node{successor}); n != 1 {
			t.Errorf("%d claims after the store was available again", n)
		}
		if _, err := old.acquire(t, time.Minute); err != nil && !errors.Is(err, holdfast.ErrBusy) {
			t.Error(err)
		}
	})
}
