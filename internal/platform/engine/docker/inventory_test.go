package docker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// made makes a container of the busybox image that is removed at the test's end.
func made(t *testing.T, e *docker.Engine, name, network string) string {
	t.Helper()
	id, err := e.Create(t.Context(), engine.Spec{Name: name, Image: labtest.Busybox, Network: network})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Remove(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	return id
}

func TestHoldersNameTheirNetworksBeforeTheyStart(t *testing.T) {
	e, private := open(t)
	api := raw(t, private)
	if _, err := api.NetworkCreate(t.Context(), "inventory", client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.RemoveUnusedNetwork(context.WithoutCancel(t.Context()), "inventory") }) // for a test that fails early
	if _, err := api.NetworkCreate(t.Context(), "docker_gwbridge", client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.RemoveUnusedNetwork(context.WithoutCancel(t.Context()), "docker_gwbridge") })
	id := made(t, e, "holder", "inventory")
	holders, err := e.Holders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(holders, func(h engine.Holder) bool { return h.ID == id })
	if i < 0 || holders[i].State != "created" || holders[i].Name != "holder" || !slices.Contains(holders[i].Networks, "inventory") {
		t.Fatalf("%+v", holders)
	}
	image, diffs, err := e.InspectImage(t.Context(), labtest.Busybox)
	if err != nil || image.ID != holders[i].ImageID || len(diffs) != 1 || !slices.Contains(image.Refs, labtest.Busybox) {
		t.Errorf("%+v, %v, %v", image, diffs, err)
	}
	nets, err := e.Networks(t.Context(), nil)
	if err != nil || !slices.ContainsFunc(nets, func(n engine.Network) bool { return n.Name == "inventory" && !n.Fixed }) ||
		!slices.ContainsFunc(nets, func(n engine.Network) bool { return n.Name == "host" && n.Fixed }) ||
		!slices.ContainsFunc(nets, func(n engine.Network) bool { return n.Name == "docker_gwbridge" && n.Fixed }) {
		t.Errorf("%+v, %v", nets, err)
	}
	images, err := e.Images(t.Context())
	if err != nil || !slices.ContainsFunc(images, func(i engine.Image) bool { return i.ID == image.ID && i.Size > 0 }) {
		t.Errorf("%+v, %v", images, err)
	}
}

func TestRemovalsAreRefusedOrHaveNothingToDo(t *testing.T) {
	e, private := open(t)
	api := raw(t, private)
	id := made(t, e, "up", "")
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := api.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: "inventory"}); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"container": e.RemoveStopped(t.Context(), id),
		"image":     e.RemoveImage(t.Context(), labtest.Busybox),
		"network":   e.RemoveUnusedNetwork(t.Context(), "bridge"),
	} {
		if !errors.Is(err, engine.ErrRefused) {
			t.Errorf("%s in use: %v", what, err)
		}
	}
	if err := e.RemoveVolume(t.Context(), "inventory"); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"container": e.RemoveStopped(t.Context(), "gone"),
		"image":     e.RemoveImage(t.Context(), "gone:1"),
		"network":   e.RemoveUnusedNetwork(t.Context(), "gone"),
		"volume":    e.RemoveVolume(t.Context(), "inventory"),
	} {
		if !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("%s that is gone: %v", what, err)
		}
	}
	if _, err := e.PruneBuildCache(t.Context(), time.Hour, 0); err != nil {
		t.Errorf("the build cache: %v", err)
	}
}

// TestParentsOfARemovedImageStay, including a parent that has lost its name.
func TestParentsOfARemovedImageStay(t *testing.T) {
	e, private := open(t)
	api := raw(t, private)
	on := labtest.Busybox
	var parent string
	for _, ref := range []string{"parent:1", "child:1"} {
		made, err := e.Create(t.Context(), engine.Spec{Name: "builder", Image: on})
		if err != nil {
			t.Fatal(err)
		}
		image, err := api.ContainerCommit(t.Context(), made, client.ContainerCommitOptions{Reference: ref})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Remove(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		if ref == "parent:1" {
			parent = image.ID
		}
		on = ref
	}
	t.Cleanup(func() { _ = e.RemoveImage(context.WithoutCancel(t.Context()), parent) }) // an error means that it is gone
	for _, ref := range []string{"parent:1", "child:1"} {
		if err := e.RemoveImage(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := e.InspectImage(t.Context(), "child:1"); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("the child: %v", err)
	}
	if _, _, err := e.InspectImage(t.Context(), parent); err != nil {
		t.Errorf("its parent: %v", err)
	}
}

// gathered returns the activities from a time until now.
func gathered(t *testing.T, e *docker.Engine, since time.Time) (gap bool, images []string) {
	t.Helper()
	for a := range e.Activity(t.Context(), since, time.Now()) {
		if a.Gap {
			gap = true
			continue
		}
		images = append(images, a.Action+" "+a.Image)
	}
	return gap, images
}

// TestActivityIsReplayedOverDowntime: after a downtime of the reader all activities
// arrive; after one of the engine a gap does.
func TestActivityIsReplayedOverDowntime(t *testing.T) {
	l := labtest.Private(t, lab.Options{})
	e := openAt(t, docker.Config{Host: l.Host()})
	create := func(name string) {
		if _, err := e.Create(t.Context(), engine.Spec{Name: name, Image: labtest.TestServer}); err != nil {
			t.Fatal(err)
		}
	}
	if gap, _ := gathered(t, e, time.Time{}); !gap {
		t.Error("at first there is no gap")
	}
	create("before")
	left := time.Now()
	create("meanwhile")
	gap, images := gathered(t, e, left)
	if gap || !slices.Equal(images, []string{"create " + labtest.TestServer}) {
		t.Errorf("gap %v, %v", gap, images)
	}
	left = time.Now()
	create("lost")
	if err := l.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if gap, images := gathered(t, e, left); !gap {
		t.Errorf("the engine has lost its events, and yields %v", images)
	}
}

// TestActivityTellsOfNetworksAndVolumes of a container that is gone.
func TestActivityTellsOfNetworksAndVolumes(t *testing.T) {
	l := labtest.Private(t, lab.Options{})
	e := openAt(t, docker.Config{Host: l.Host()})
	api := raw(t, l)
	network, err := api.NetworkCreate(t.Context(), "nightly", client.NetworkCreateOptions{Driver: "bridge"})
	if err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	made, err := api.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: labtest.TestServer},
		HostConfig: &container.HostConfig{NetworkMode: "nightly", Binds: []string{"nightly:/data"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	if err := e.Remove(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	var networks, volumes []string
	for a := range e.Activity(t.Context(), since, time.Now()) {
		switch {
		case a.Network == network.ID:
			networks = append(networks, a.Action)
		case a.Volume == "nightly":
			volumes = append(volumes, a.Action)
		}
	}
	if !slices.Equal(networks, []string{"connect", "disconnect"}) || !slices.Equal(volumes, []string{"mount", "unmount"}) {
		t.Errorf("the network: %v, the volume: %v", networks, volumes)
	}
}

// TestActivityGoesOn over a restart of the engine.
func TestActivityGoesOn(t *testing.T) {
	l := labtest.Private(t, lab.Options{})
	e := openAt(t, docker.Config{Host: l.Host()})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	restarted := make(chan error, 1)
	gaps := 0
	for a := range e.Activity(ctx, time.Time{}, time.Time{}) {
		if a.Gap {
			if gaps++; gaps == 1 {
				go func() { restarted <- l.Restart(ctx) }()
			} else {
				go func() {
					_, err := e.Create(ctx, engine.Spec{Name: "after", Image: labtest.TestServer})
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}()
			}
			continue
		}
		if gaps < 2 || a.Action != "create" {
			continue
		}
		break
	}
	if ctx.Err() != nil {
		t.Fatalf("no activity after %d gaps", gaps)
	}
	if err := <-restarted; err != nil {
		t.Error(err)
	}
}
