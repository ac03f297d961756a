package gc

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/agent/gcnode"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/gc"
	"holdfast/test/poll"
)

// `holdfast gc serve` on a disk that always counts as too full deletes nothing while a container
// of another client is between create and start.
func TestServeWaitsForOthers(t *testing.T) {
	h := newHost(t)
	h.image("kept:1", 10)
	c := config.Default()
	c.Engine.Host, c.DataDir, c.RunDir = h.lab.Host(), h.data, h.data
	c.GC = everything()
	c.GC.Enabled, c.GC.Every = true, time.Second
	c.GC.Low, c.GC.High, c.GC.Critical = gc.Bytes(1), gc.Bytes(2), gc.Percent(99.9)
	c.GC.Rules = []gc.Rule{{Kinds: []gc.Kind{gc.Images}, Match: []string{"kept:*", "old:*"}, Pressure: true}}
	if err := c.GC.Validate(); err != nil {
		t.Fatal(err)
	}
	g, err := gcnode.Open(t.Context(), c, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	up := h.create("kept:1", "")
	h.start(up)
	go func() { served <- g.Serve(ctx) }()
	underWay := func() int {
		s, err := g.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.UnderWay
	}
	// The watcher may miss the first ones.
	var created []string
	poll.Until(h, "a spin-up is seen", func() bool {
		created = append(created, h.create("kept:1", ""))
		time.Sleep(200 * time.Millisecond)
		return underWay() > 0
	})
	h.image("old:1", 500)
	time.Sleep(4 * time.Second) // several checks of the disk
	if underWay() == 0 {
		t.Fatal("the created container does not count any more")
	}
	h.imageID("old:1") // fails if it does not exist
	for _, id := range created {
		h.start(id)
	}
	poll.Until(h, "old:1 goes", func() bool { _, err := h.engine.ImageID(t.Context(), "old:1"); return err != nil })
	h.imageID("kept:1")
	poll.Until(h, "the cycle ends", func() bool {
		s, err := g.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Suspended > 0 && s.Last != nil && s.Last.Ended
	})
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// `holdfast gc run` watches uses during its cycle, because a client may use objects between the
// plan and the last removal.
func TestWatchFollowsUses(t *testing.T) {
	h := newHost(t)
	id := h.image("app:1", 10)
	c := config.Default()
	c.Engine.Host, c.DataDir, c.RunDir = h.lab.Host(), h.data, h.data
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	// The first watch may start late. It replays earlier events.
	poll.Until(h, "the use is kept", func() bool {
		g, err := gcnode.Open(t.Context(), c, prometheus.NewRegistry(), log)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan error, 1)
		go func() { watched <- g.Watch(ctx) }()
		h.create("app:1", "")
		time.Sleep(200 * time.Millisecond)
		cancel()
		if err := <-watched; err != nil {
			t.Fatal(err)
		}
		u, err := gc.NewStore(h.data, log).Uses()
		if err != nil {
			t.Fatal(err)
		}
		return !u.Last[id].IsZero()
	})
}
