package labtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"holdfast/internal/platform/engine/containerd"
	"holdfast/test/lab"
)

var containerdDir = flag.String("containerd", "", "directory with the programs of another containerd than the installed one: containerd, containerd-shim-runc-v2, and runc if it needs another")

var onContainerd = flag.Bool("on-containerd", false, "the tests that can run on containerd, instead of on Docker")

// OnContainerd reports whether the test program has the flag -on-containerd.
func OnContainerd() bool { return *onContainerd }

// sharedDaemon is the package's containerd. A test binary has one.
var sharedDaemon struct {
	sync.Mutex
	daemon *lab.Containerd
	err    error
}

// SharedContainerd returns the package's shared containerd, with the images
// Busybox and TestServer in the adapter's namespace. The test removes the
// containers it makes.
func SharedContainerd(t testing.TB) *lab.Containerd {
	t.Helper()
	needLab(t)
	sharedDaemon.Lock()
	defer sharedDaemon.Unlock()
	if sharedDaemon.daemon == nil && sharedDaemon.err == nil {
		sharedDaemon.daemon, sharedDaemon.err = startContainerd(context.Background())
	}
	if sharedDaemon.err != nil {
		t.Fatal(sharedDaemon.err)
	}
	return sharedDaemon.daemon
}

func stopContainerd() error {
	sharedDaemon.Lock()
	defer sharedDaemon.Unlock()
	if sharedDaemon.daemon == nil {
		return nil
	}
	return sharedDaemon.daemon.Stop()
}

// startContainerd starts a containerd with its images.
func startContainerd(ctx context.Context) (*lab.Containerd, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	o := lab.ContainerdOptions{Path: *containerdDir}
	if o.Path != "" {
		o.Command = filepath.Join(o.Path, "containerd")
	}
	daemon, err := lab.StartContainerd(ctx, o)
	if err != nil {
		return nil, err
	}
	e, err := containerd.Open(ctx, ContainerdConfig(daemon))
	if err == nil {
		err = errors.Join(loadImages(ctx, e), e.Close())
	}
	if err != nil {
		return nil, errors.Join(err, daemon.Stop())
	}
	return daemon, nil
}

// Containerd starts a containerd for one test, with the images Busybox and TestServer, and
// stops it at the test's end. The network of the adapter is inside the lab.
func Containerd(t testing.TB) (*containerd.Engine, *lab.Containerd) {
	t.Helper()
	needLab(t)
	daemon, err := startContainerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Stop(); err != nil {
			t.Error(err)
		}
	})
	return OpenContainerd(t, ContainerdConfig(daemon)), daemon
}

// ContainerdConfig returns the adapter's configuration for a private containerd.
func ContainerdConfig(daemon *lab.Containerd) containerd.Config {
	return containerd.Config{
		Host: daemon.Host(), CgroupParent: daemon.CgroupParent(), Dir: filepath.Join(daemon.Scratch(), "holdfast"),
	}
}

// ContainerdNode returns the adapter's configuration for node i, from 0 on, on the package's
// containerd: a namespace with the images, and a network of its own.
func ContainerdNode(t testing.TB, i int) containerd.Config {
	t.Helper()
	c := ContainerdConfig(SharedContainerd(t))
	c.Namespace, c.Bridge, c.Subnet = fmt.Sprint("node", i), fmt.Sprint("node", i), fmt.Sprintf("10.%d.0.0/16", 172+i)
	if err := loadImages(t.Context(), OpenContainerd(t, c)); err != nil {
		t.Fatal(err)
	}
	return c
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
