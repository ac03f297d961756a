package gc

import (
	"context"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/moby/moby/client"

	"holdfast/internal/hosts/gc"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab"
	"holdfast/test/poll"
)

// An image that arrives while the files of an equal layer are linked away has all of its files. The
// layers that another image shares, and those of a container that runs, keep theirs.
func TestLayersThatAreWantedKeepTheirFiles(t *testing.T) {
	h := newHost(t)
	many := func(ref string) {
		if err := h.lab.Import(h.Context(), lab.ManyFiles(h.base, ref, 1500, 1000, 7)); err != nil {
			h.Error(err)
		}
	}
	h.image("shared:1", 700)
	h.layer("shared:1", "shared:2")
	up := h.create("shared:1", "")
	h.start(up)
	many("old:1")
	arrived := make(chan struct{})
	go func() {
		defer close(arrived)
		poll.Until(h, "trash", func() bool { return len(h.trash()) > 0 })
		many("again:1")
	}()
	c := everything()
	c.Rules = []gc.Rule{{Kinds: []gc.Kind{gc.Images}, Match: []string{"old:1", "shared:2"}}}
	cy := h.collect(c)
	<-arrived
	if len(cy.Deleted) != 2 {
		t.Errorf("%+v", cy)
	}
	h.expect("again:1", "shared:1", "testserver:latest")
	for id, want := range map[string]int{h.create("again:1", ""): 1500, h.create("shared:1", ""): 700, up: 700} {
		if got := h.readable(id); got < want {
			t.Errorf("container %.12s has %d files, wanted %d", id, got, want)
		}
	}
}

// A collector that was killed while it asked containerd for the directories of layers leaves a
// snapshot, which keeps the layers. The next collector removes it, and containerd frees the layers.
func TestKilledWhileItAsksContainerd(t *testing.T) {
	h := newHost(t)
	info, err := h.api.Info(t.Context(), client.InfoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if i, err := h.engine.Info(t.Context()); err != nil || i.ImageStore != engine.ContainerdStore {
		t.Skipf("the engine has the store %q (%v): run the test with -dockerd", i.ImageStore, err)
	}
	h.image("old:1", 50)
	at := info.Info.Containerd
	api, err := containerd.New(strings.TrimPrefix(at.Address, "unix://"), containerd.WithDefaultNamespace(at.Namespaces.Containers))
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	sn := api.SnapshotService(info.Info.Driver)
	layers := func() (names []string) {
		err := sn.Walk(t.Context(), func(_ context.Context, i snapshots.Info) error {
			names = append(names, i.Name)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return names
	}
	lease, err := api.LeasesService().Create(t.Context(), leases.WithID("holdfast-gc"))
	if err != nil {
		t.Fatal(err)
	}
	if before := layers(); len(before) < 2 {
		t.Fatalf("snapshots %v", before)
	} else if _, err := sn.View(leases.WithLease(t.Context(), lease.ID), "holdfast-gc", before[0]); err != nil {
		t.Fatal(err)
	}
	h.collect(everything())
	h.expect()
	left, err := api.LeasesService().List(t.Context(), "id==holdfast-gc")
	if names := layers(); err != nil || len(names)+len(left) > 0 {
		t.Errorf("left are snapshots %v and leases %v, %v", names, left, err)
	}
}
