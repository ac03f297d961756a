// Package gc tests garbage collection on a real engine: used objects stay, also if a process
// dies in the middle.
package gc

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"holdfast/internal/hosts/gc"
	"holdfast/internal/platform/engine/containerd"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// childEnv is the environment variable that makes the test binary a collector to be killed.
const childEnv = "GC_TEST_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := labtest.Main(m)
	if binary.dir != "" {
		os.RemoveAll(binary.dir)
	}
	os.Exit(code)
}

// childArgs are the arguments of a child.
type childArgs struct {
	Host, Data string
	Containerd *containerd.Config // instead of Docker at Host
	Config     gc.Config
}

// child collects, and prints what it deleted.
func child(text string) error {
	var a childArgs
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return err
	}
	e, err := a.open()
	if err != nil {
		return err
	}
	c := gc.New(a.Config, gc.Deps{Engine: e, Store: gc.NewStore(a.Data, slog.Default()), LockDir: a.Data, Log: slog.Default()})
	_, err = c.Collect(context.Background(), gc.ByRequest, func(o gc.Outcome, deleted bool) { fmt.Println(o.Name, deleted) })
	return err
}

func (a childArgs) open() (gc.Engine, error) {
	if a.Containerd != nil {
		return containerd.Open(context.Background(), *a.Containerd)
	}
	return docker.Open(context.Background(), docker.Config{Host: a.Host})
}

// host is an engine with what a collector needs.
type host struct {
	*testing.T
	lab    *lab.Engine
	engine *docker.Engine
	api    *client.Client
	data   string
	base   lab.Image
}

// newHost returns the package's engine with only the image of the test server.
func newHost(t *testing.T) *host {
	t.Helper()
	h := hostOn(t, labtest.Engine(t))
	h.clear()
	if err := labtest.ImportServer(t.Context(), h.lab); err != nil {
		t.Fatal(err)
	}
	return h
}

// newHostWith starts an engine for the test.
func newHostWith(t *testing.T, o lab.Options) *host {
	t.Helper()
	return hostOn(t, labtest.Private(t, o))
}

func hostOn(t *testing.T, e *lab.Engine) *host {
	t.Helper()
	h := &host{T: t, lab: e, data: t.TempDir()}
	var err error
	if h.base, err = lab.Busybox(); err != nil {
		t.Fatal(err)
	}
	if h.engine, err = docker.Open(t.Context(), docker.Config{Host: h.lab.Host()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.engine.Close() })
	if h.api, err = client.New(client.WithHost(h.lab.Host())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.api.Close() })
	return h
}

// clear removes the objects of earlier tests.
func (h *host) clear() {
	h.Helper()
	ctx := h.Context()
	containers, err := h.api.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		h.Fatal(err)
	}
	for _, c := range containers.Items {
		if err := h.engine.Remove(ctx, c.ID); err != nil {
			h.Fatal(err)
		}
	}
	nets, err := h.api.NetworkList(ctx, client.NetworkListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	for _, n := range nets.Items {
		if builtIn(n.Name) {
			continue
		}
		if _, err := h.api.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{}); err != nil {
			h.Fatal(err)
		}
	}
	images, err := h.api.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	for _, i := range images.Items {
		_, err := h.api.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		if err != nil && !errdefs.IsNotFound(err) { // NotFound: removed together with its child
			h.Fatal(err)
		}
	}
}

// builtIn reports whether a network is one that every engine has.
func builtIn(name string) bool {
	return slices.Contains([]string{network.NetworkBridge, network.NetworkHost, network.NetworkNone}, name)
}

// everything returns a policy that removes all unused objects.
func everything() gc.Config {
	c := gc.DefaultConfig()
	c.MinAge = 0
	// How full the disk of this machine is must not matter.
	c.Low, c.High, c.Critical = gc.Percent(99.7), gc.Percent(99.8), gc.Percent(99.9)
	c.Rules = []gc.Rule{{Kinds: []gc.Kind{gc.Networks}}, {Kinds: []gc.Kind{gc.Images}}}
	return c
}

func (h *host) collector(c gc.Config, spinups gc.Spinups) *gc.Collector {
	log := slog.New(slog.NewTextHandler(h.Output(), nil))
	return gc.New(c, gc.Deps{Engine: h.engine, Store: gc.NewStore(h.data, log), Spinups: spinups, LockDir: h.data, Log: log})
}

func (h *host) collect(c gc.Config) gc.Cycle {
	h.Helper()
	cy, err := h.collector(c, nil).Collect(h.Context(), gc.ByRequest, nil)
	if err != nil {
		h.Fatal(err)
	}
	return cy
}

var seed uint64

// image creates an image with that many files, and returns its id.
func (h *host) image(ref string, files int) string {
	h.Helper()
	h.imageQuietly(ref, files)
	return h.imageID(ref)
}

// imageQuietly creates an image that may be removed at once.
func (h *host) imageQuietly(ref string, files int) {
	h.Helper()
	seed++
	if err := h.lab.Import(h.Context(), lab.ManyFiles(h.base, ref, files, 1000, seed)); err != nil {
		h.Fatal(err)
	}
}

func (h *host) imageID(ref string) string {
	h.Helper()
	id, err := h.engine.ImageID(h.Context(), ref)
	if err != nil {
		h.Fatal(err)
	}
	return id
}

// layer creates an image on top of another one.
func (h *host) layer(on, ref string) {
	h.Helper()
	id := h.create(on, "")
	h.start(id)
	if _, err := h.api.ContainerCommit(h.Context(), id, client.ContainerCommitOptions{Reference: ref}); err != nil {
		h.Fatal(err)
	}
	if err := h.engine.Remove(h.Context(), id); err != nil {
		h.Fatal(err)
	}
}

func (h *host) create(image, net string) string {
	h.Helper()
	res, err := h.api.ContainerCreate(h.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: image, Cmd: []string{"/bin/sh", "-c", "echo x > /written; sleep 600"}},
		HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode(net)},
	})
	if err != nil {
		h.Fatal(err)
	}
	return res.ID
}

func (h *host) start(id string) {
	h.Helper()
	if err := h.engine.Start(h.Context(), id); err != nil {
		h.Fatal(err)
	}
}

func (h *host) network(name string) {
	h.Helper()
	if _, err := h.api.NetworkCreate(h.Context(), name, client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
		h.Fatal(err)
	}
}

// names returns all names of images and user-defined networks.
func (h *host) names() []string {
	h.Helper()
	images, err := h.engine.Images(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	var names []string
	for _, i := range images {
		names = append(names, i.Refs...)
	}
	nets, err := h.api.NetworkList(h.Context(), client.NetworkListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	for _, n := range nets.Items {
		if !builtIn(n.Name) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (h *host) expect(want ...string) {
	h.Helper()
	if got := h.names(); !slices.Equal(got, want) {
		h.Errorf("there are %v, want %v", got, want)
	}
}

// trash returns the batches that wait to be freed.
func (h *host) trash() []string {
	h.Helper()
	list, err := filepath.Glob(filepath.Join(h.lab.DataRoot(), "holdfast-gc", "trash", "*"))
	if err != nil {
		h.Fatal(err)
	}
	return list
}
