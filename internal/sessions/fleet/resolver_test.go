package fleet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
)

// TestOneNodeWithoutStore: no request waits for a node that cannot reach the store if
// another node accepts the session.
func TestOneNodeWithoutStore(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
		c.publish(func(n *holdfast.Node) { n.CPULoad = 0.9 }) // of any two nodes it is the second choice
		for _, x := range []*node{a, b} {
			x.host.refuse = holdfast.ErrStore
		}
		start := time.Now()
		if r := a.mustAcquire(t); r.Node != c.id || !time.Now().Equal(start) {
			t.Errorf("route %+v after %v, want one to %s at once", r, time.Since(start), c.id)
		}
		if n, _ := a.nodes.get(a.id); n.Trouble == "" {
			if n, _ := a.nodes.get(b.id); n.Trouble == "" {
				t.Error("the next session is also placed on them")
			}
		}
	})
}

func TestStoreAwayForAllNodes(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		for _, x := range w.nodes {
			x.host.refuse = holdfast.ErrStore
		}
		time.AfterFunc(5*time.Second, func() { w.store.SetDown(true) })
		defer w.store.SetDown(false)
		for range 2 { // the second request uses what the first has learned
			if _, err := w.nodes[0].acquire(t, 20*time.Second); !errors.Is(err, holdfast.ErrStore) {
				t.Errorf("Acquire = %v, want ErrStore", err)
			}
		}
	})
}

// TestTemplateOfNoNode: the request that named the template gets the error at once,
// and no other request does.
func TestTemplateOfNoNode(t *testing.T) {
	bubble(t, 12, func(t *testing.T, w *world) {
		for _, x := range w.nodes {
			x.host.has = map[string]bool{}
			x.host.boot = time.Second
		}
		x := w.nodes[0]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if _, err := x.Start(ctx, key, "misspelt"); !errors.Is(err, holdfast.ErrNotFound) || !time.Now().Equal(start) {
			t.Errorf("Start = %v after %v, want ErrNotFound at once", err, time.Since(start))
		}
		// A request for another template does not share a long search.
		for _, n := range w.nodes {
			n.host.refuse = holdfast.ErrBusy
			n.host.has = nil
		}
		started := make(chan error)
		go func() { _, err := x.Start(ctx, key, "rare"); started <- err }()
		time.Sleep(10 * time.Second)
		for _, n := range w.nodes {
			n.host.with(func() { n.host.refuse, n.host.has = nil, map[string]bool{} })
		}
		x.mustAcquire(t)
		if o, ok := x.dir.Owner(key); !ok || o.Template != "" {
			t.Errorf("%+v, want the default template", o)
		}
		if err := <-started; err != nil && !errors.Is(err, holdfast.ErrNotFound) {
			t.Error(err)
		}
	})
}

// TestTemplateOfOneNode: the nodes of a fleet get a new configuration one by one.
func TestTemplateOfOneNode(t *testing.T) {
	bubble(t, 12, func(t *testing.T, w *world) {
		for _, x := range w.nodes[:11] {
			x.host.has = map[string]bool{}
		}
		last := w.nodes[11]
		last.host.has = map[string]bool{"new": true}
		r, err := w.nodes[0].Start(t.Context(), key, "new")
		if err != nil || r.Node != last.id || last.host.lastTemplate() != "new" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestRemovedTemplate: the template of a session was removed from the configuration.
func TestRemovedTemplate(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		old, successors := w.nodes[0], w.nodes[1:]
		old.own(t, key)
		old.host.draining = true
		for _, x := range successors {
			x.host.has = map[string]bool{}
		}
		must(t, old.host.finish(t.Context(), key))
		synctest.Wait()
		r := successors[0].mustAcquire(t)
		if o := w.owner(successors[0], r); o == old || o.host.lastTemplate() != "" {
			t.Errorf("route %+v", r)
		}
	})
}

// TestDrainIsReadBeforeTheSuccessorIsIgnored: a node may learn of the release before it
// learns of the drain.
func TestDrainIsReadBeforeTheSuccessorIsIgnored(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		old, asks := w.nodes[0], w.nodes[1]
		old.own(t, key)
		_, err := asks.nodes.all(t.Context())
		must(t, err)
		time.Sleep(time.Minute)
		old.publish(func(n *holdfast.Node) { n.Draining = true })
		must(t, old.host.finish(t.Context(), key))
		synctest.Wait()
		start := time.Now()
		asks.mustAcquire(t)
		if waited := time.Since(start); waited < handoffGrace {
			t.Errorf("it was placed after %v, want %v for a successor", waited, handoffGrace)
		}
	})
}

// TestDrainOfTheOnlyNode: no other node can accept the session.
func TestDrainOfTheOnlyNode(t *testing.T) {
	for name, drain := range map[string]func(*node){
		"by its record": func(x *node) { x.publish(func(n *holdfast.Node) { n.Draining = true }) },
		"by its answer": func(x *node) { x.host.draining = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, w *world) {
				x := w.nodes[0]
				drain(x)
				start := time.Now()
				if _, err := x.acquire(t, time.Minute); !errors.Is(err, holdfast.ErrDraining) || !time.Now().Equal(start) {
					t.Errorf("Acquire = %v after %v, want ErrDraining at once", err, time.Since(start))
				}
			})
		})
	}
}

// TestSuspectDoesNotWaitForTheStore: the owner receives a request at once.
func TestSuspectDoesNotWaitForTheStore(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		a.publish(func(n *holdfast.Node) { n.Trouble = "so that b has it" })
		r := a.mustAcquire(t)
		time.Sleep(time.Minute) // the list of nodes is old by then
		w.store.SetHung(true)
		defer w.store.SetHung(false)
		a.Refused(key, r)
		start := time.Now()
		if again := a.mustAcquire(t); again.Node != b.id || !time.Now().Equal(start) {
			t.Errorf("route %+v after %v, want the same at once", again, time.Since(start))
		}
	})
}
