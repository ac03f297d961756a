package gc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"holdfast/internal/hosts/gc"
	"holdfast/internal/platform/engine"
)

// All kinds of leaked objects are removed, and used objects that look similar stay.
func TestWhatIsInUseStays(t *testing.T) {
	h := newHost(t)
	h.image("old:1", 1500)
	h.layer("old:1", "old:2") // shares a layer
	h.image("up:1", 50)
	h.image("ended:1", 50)
	h.image("new:1", 50)
	h.network("leaked")
	h.network("of-new")
	h.network("of-ended")
	up := h.create("up:1", "")
	h.start(up)
	ended := h.create("ended:1", "of-ended")
	h.start(ended)
	if err := h.engine.Kill(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	fresh := h.create("new:1", "of-new")

	p, err := h.collector(everything(), nil).Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// old:1 and old:2, the test server of the lab, and the network.
	if len(p.Deletions) != 4 || p.Bytes < 1500*1000 {
		t.Errorf("planned %+v", p)
	}
	cy := h.collect(everything())
	h.expect("ended:1", "new:1", "of-ended", "of-new", "up:1")
	if len(cy.Deleted) != 4 || len(cy.Skipped) > 0 || len(cy.Notices) > 0 {
		t.Errorf("%+v", cy)
	}
	linked := 0
	for _, o := range cy.Deleted {
		linked += o.Linked
	}
	if linked < 1500 || len(h.trash()) > 0 {
		t.Errorf("%d files were linked away, and %v is left", linked, h.trash())
	}
	h.start(fresh)
	h.start(ended)
}

// Ended containers and containers that never started are removed, with the objects that only they
// used.
func TestContainersGo(t *testing.T) {
	h := newHost(t)
	h.image("app:1", 20)
	h.network("net")
	never := h.create("app:1", "net")
	ended := h.create("app:1", "net")
	h.start(ended)
	up := h.create("app:1", "")
	h.start(up)
	if err := h.engine.Kill(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	c := everything()
	c.Rules = []gc.Rule{{Kinds: []gc.Kind{gc.Stopped, gc.Created}}, {Kinds: []gc.Kind{gc.Networks}}}
	cy := h.collect(c)
	h.expect("app:1", "testserver:latest")
	left, err := h.engine.Holders(t.Context())
	if err != nil || len(left) != 1 || left[0].ID != up || len(cy.Deleted) != 3 {
		t.Errorf("%v, %v, deleted %+v (never started: %s)", left, err, cy.Deleted, never)
	}
	for _, o := range cy.Deleted {
		if o.ID == ended && o.Linked == 0 {
			t.Error("what the container wrote was not linked away")
		}
	}
}

// An image with several names is removed by each name, not by force.
func TestEveryNameGoes(t *testing.T) {
	h := newHost(t)
	id := h.image("app:1", 20)
	for _, name := range []string{"app:2", "other/app:x"} {
		if _, err := h.api.ImageTag(t.Context(), client.ImageTagOptions{Source: id, Target: name}); err != nil {
			t.Fatal(err)
		}
	}
	h.collect(everything())
	h.expect()
	if _, err := h.engine.ImageID(t.Context(), id); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("the image: %v", err)
	}
}

func TestEngineRestartsInTheMiddle(t *testing.T) {
	h := newHost(t)
	h.image("kept:1", 10)
	h.create("kept:1", "")
	for _, ref := range []string{"a:1", "b:1", "c:1", "d:1"} {
		h.image(ref, 300)
	}
	n := 0
	cy, err := h.collector(everything(), nil).Collect(t.Context(), gc.ByRequest, func(gc.Outcome, bool) {
		if n++; n == 2 {
			if err := h.lab.Kill(); err != nil {
				t.Error(err)
			}
		}
	})
	if err == nil || len(cy.Deleted) != 2 || cy.Error == "" {
		t.Fatalf("%+v, %v", cy, err)
	}
	if err := h.lab.StartDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.collect(everything())
	h.expect("kept:1")
	if len(h.trash()) > 0 {
		t.Errorf("left %v", h.trash())
	}
}

// Two collectors never run at the same time, and together remove no used object.
func TestTwoCollectors(t *testing.T) {
	h := newHost(t)
	h.image("kept:1", 10)
	h.create("kept:1", "")
	for _, ref := range []string{"a:1", "b:1", "c:1", "d:1"} {
		h.image(ref, 200)
	}
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		cycles []gc.Cycle
	)
	for range 2 {
		all.Go(func() {
			c := h.collector(everything(), nil)
			for range 20 {
				cy, err := c.Collect(t.Context(), gc.ByRequest, nil)
				switch {
				case errors.Is(err, gc.ErrBusy):
				case err != nil:
					t.Error(err)
				default:
					mu.Lock()
					cycles = append(cycles, cy)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	h.expect("kept:1")
	slices.SortFunc(cycles, func(a, b gc.Cycle) int { return a.Begun.Compare(b.Begun) })
	for i := 1; i < len(cycles); i++ {
		last := cycles[i-1].Deleted
		if len(last) > 0 && len(cycles[i].Deleted) > 0 && cycles[i].Deleted[0].At.Before(last[len(last)-1].At) {
			t.Errorf("a cycle of %v deleted before the one of %v had ended", cycles[i].Begun, cycles[i-1].Begun)
		}
	}
	if len(cycles) == 0 {
		t.Error("no collection ever ran")
	}
}

// Another client prunes at the same time. Vanished objects and conflicts are no errors.
func TestBesidePrune(t *testing.T) {
	h := newHost(t)
	h.image("kept:1", 10)
	h.create("kept:1", "")
	for i := range 5 {
		h.image("x:"+string(rune('a'+i)), 100)
		h.network("n-" + string(rune('a'+i)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var pruning sync.WaitGroup
	pruning.Go(func() {
		for ctx.Err() == nil {
			// Their errors are the engine's refusals of concurrent prunes.
			_, _ = h.api.ImagePrune(ctx, client.ImagePruneOptions{Filters: client.Filters{}.Add("dangling", "false")})
			_, _ = h.api.NetworkPrune(ctx, client.NetworkPruneOptions{})
		}
	})
	cy, err := h.collector(everything(), nil).Collect(t.Context(), gc.ByRequest, nil)
	cancel()
	pruning.Wait()
	if err != nil {
		t.Fatal(err)
	}
	h.expect("kept:1")
	for _, o := range cy.Skipped {
		if !strings.Contains(o.Reason, "it was already removed") && !strings.Contains(o.Reason, "refuse") {
			t.Errorf("skipped %+v", o)
		}
	}
}
