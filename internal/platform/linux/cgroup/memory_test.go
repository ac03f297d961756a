package cgroup_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
)

// memory returns the hierarchies of this host, and the one with the memory controller.
func memory(t *testing.T) (cgroup.Mounts, cgroup.Mount) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("it needs root")
	}
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := mounts.Memory()
	if !ok {
		t.Fatal("there is no memory controller")
	}
	return mounts, m
}

// EmptyMemory reclaims a group's memory.
func TestEmptyMemory(t *testing.T) {
	_, m := memory(t)
	g := m.Group("/holdfast-memory-test")
	if err := os.Mkdir(g.Dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Rmdir(g.Dir()); err != nil {
			t.Error(err)
		}
	})
	if err := g.EmptyMemory(t.Context()); err != nil {
		t.Errorf("an empty group: %v", err)
	}
	if children, err := m.Group("/").Children(); err != nil || len(children) == 0 {
		t.Errorf("children of the root: %v, %v", children, err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.EmptyMemory(done); !g.V2 && !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	if err := m.Group("/no-such-group").EmptyMemory(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing group: %v", err)
	}
	if stat, err := g.MemoryStat(); err != nil || len(stat) < 5 {
		t.Errorf("figures: %v, %v", stat, err)
	}
	// v2 before Linux 5.18 does not report it.
	if n, err := g.KernelMemory(); n < 0 || err != nil && (!g.V2 || !errors.Is(err, errors.ErrUnsupported)) {
		t.Errorf("kernel memory: %d, %v", n, err)
	}
	if _, err := m.Group("/no-such-group").KernelMemory(); err == nil {
		t.Error("a missing group has kernel memory")
	}
}

// A blocking write, here to a pipe without a reader, ends with its context.
func TestWriteUntil(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = kfile.WriteUntil(ctx, fifo, string(make([]byte, 1<<20))) // more than the pipe's capacity
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if ctx.Err() == nil {
		t.Error("it returned before")
	}
	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := kfile.WriteUntil(t.Context(), plain, "7"); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(plain); err != nil || string(b) != "7" {
		t.Errorf("%q, %v", b, err)
	}
}

// The group of a container has its id in its name. A process in a group below it, or in another
// group, leads to no other one.
func TestMemoryOfContainer(t *testing.T) {
	mounts, m := memory(t)
	const id = "0123456789abcdef"
	want := m.Group("/holdfast-container-test/docker-" + id + ".scope")
	below := m.Group(want.Path + "/init")
	if err := os.MkdirAll(below.Dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, g := range []cgroup.Group{below, want, m.Group("/holdfast-container-test")} {
			if err := unix.Rmdir(g.Dir()); err != nil {
				t.Error(err)
			}
		}
	})
	pid := cmd.Process.Pid
	if err := os.WriteFile(filepath.Join(below.Dir(), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
	if g, ok := mounts.MemoryOfContainer(proc.Host, pid, id); !ok || g.Path != want.Path {
		t.Errorf("%+v, %v", g, ok)
	}
	for name, c := range map[string]struct {
		pid int
		id  string
	}{
		"another container": {pid, "fedcba9876543210"}, "another process": {os.Getpid(), id},
		"no process": {0, id}, "no id": {pid, ""}, "a process that is gone": {1 << 30, id},
	} {
		if g, ok := mounts.MemoryOfContainer(proc.Host, c.pid, c.id); ok {
			t.Errorf("%s: %+v", name, g)
		}
	}
}
