package labtest

import (
	"context"
	"flag"
	"path/filepath"
	"testing"

	"holdfast/internal/engine/containerd"
	"holdfast/internal/lab"
)

var containerdDir = flag.String("containerd", "", "directory with the programs of another containerd than the installed one: containerd, containerd-shim-runc-v2, and runc if it needs another")

// Containerd starts a containerd for one test, with the images Busybox and
// TestServer, and stops it at the test's end. The adapter's own network is the
// lab's.
func Containerd(t testing.TB) (*containerd.Engine, *lab.Containerd) {
	t.Helper()
	needLab(t)
	o := lab.ContainerdOptions{Path: *containerdDir}
	if o.Path != "" {
		o.Command = filepath.Join(o.Path, "containerd")
	}
	daemon, err := lab.StartContainerd(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Stop(); err != nil {
			t.Error(err)
		}
	})
	e := OpenContainerd(t, ContainerdConfig(daemon))
	if err := loadImages(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	return e, daemon
}

// ContainerdConfig is the adapter's for a private containerd.
func ContainerdConfig(daemon *lab.Containerd) containerd.Config {
	return containerd.Config{
		Host: daemon.Host(), CgroupParent: daemon.CgroupParent(), Dir: filepath.Join(daemon.Scratch(), "holdfast"),
	}
}

// OpenContainerd opens the adapter for one test.
func OpenContainerd(t testing.TB, c containerd.Config) *containerd.Engine {
	t.Helper()
	e, err := containerd.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func loadImages(ctx context.Context, e *containerd.Engine) error {
	busybox, err := lab.Busybox()
	if err != nil {
		return err
	}
	path, err := builtServer(ctx)
	if err != nil {
		return err
	}
	server, err := lab.Binary(TestServer, path)
	if err != nil {
		return err
	}
	for _, img := range []lab.Image{busybox, server} {
		archive, err := img.Archive()
		if err != nil {
			return err
		}
		if err := e.Load(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}
