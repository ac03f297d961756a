package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
)

// leftBehind returns the bytes of page cache, below the engine's cgroup, that are
// charged to removed cgroups. (The kernel's count of dying cgroups covers the whole
// host, on which other programs create and remove cgroups at the same time.)
func leftBehind(t *testing.T) int64 {
	t.Helper()
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := mounts.Memory()
	if !ok {
		t.Fatal("there is no memory controller")
	}
	g := m.Group(daemon(t).CgroupParent())
	cache := func(g cgroup.Group) int64 {
		s, err := g.MemoryStat()
		if err != nil {
			return 0 // the file is gone
		}
		return s["total_cache"] + s["file"]
	}
	n := cache(g)
	children, err := g.Children()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range children {
		n -= cache(c)
	}
	return n
}

// dyingGroups returns the kernel's count of memory cgroups minus their directories.
func dyingGroups(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "memory" {
			n, _ = strconv.Atoi(f[2])
		}
	}
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := mounts.Memory()
	_ = filepath.WalkDir(m.Point, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			n--
		}
		return nil
	})
	return n
}

// Files that a session has read outlive it. Their page cache does not keep the memory
// cgroups of dead sessions, because the manager reclaims it. Without reclaims every
// cgroup stays.
func TestDeadSessionsLeaveNoMemory(t *testing.T) {
	labtest.NeedLong(t, "twelve sessions, and seconds until the kernel frees memory")
	const sessions, size = 6, 1 << 20
	dir := filepath.Join(daemon(t).Scratch(), t.Name())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(prefix string, reclaim bool) (int64, int) {
		for i := range sessions {
			name := filepath.Join(dir, fmt.Sprintf("%s-%d", prefix, i))
			fresh(t, name, size)
		}
		tmpl := web()
		tmpl.Mounts = []engine.Mount{{Type: "bind", Source: filepath.Join(dir, "{key}"), Target: "/data"}}
		tmpl.Image, tmpl.Ready.HTTPPath = labtest.Busybox, ""
		tmpl.Command = []string{"sh", "-c", "cat /data > /dev/null; exec busybox httpd -f -p 8080"}
		n := newNode(t, setup{id: holdfast.NodeID(prefix), cfg: Config{Templates: []Template{tmpl}}})
		if !reclaim {
			for range cap(n.reclaims) { // occupy every slot
				n.reclaims <- struct{}{}
			}
		}
		bytes, groups := leftBehind(t), dyingGroups(t)
		for i := range sessions {
			key := holdfast.SessionKey(fmt.Sprintf("%s-%d", prefix, i))
			n.serve(t, key)
			if r, err := n.Stop(t.Context(), key); err != nil || len(r.Left) > 0 {
				t.Fatalf("stop %s: %+v, %v", key, r, err)
			}
		}
		n.empty(t)
		settled := leftBehind(t)
		for range 20 { // the kernel removes cgroups with a delay
			time.Sleep(100 * time.Millisecond)
			settled = min(settled, leftBehind(t))
		}
		return settled - bytes, dyingGroups(t) - groups
	}
	without, stayed := run("without", false)
	if without < sessions*size/2 { // groups of earlier tests may go meanwhile
		t.Errorf("without reclaims only %d bytes stay, so the test proves nothing", without)
	}
	// The engine removes a group some 10 ms after the end of its container. On a loaded
	// machine some reclaims start too late for that.
	const attempts = 5
	for i := range attempts {
		with, stay := run(fmt.Sprintf("with-%d", i), true)
		t.Logf("%d sessions that read %d bytes each: without reclaims %d bytes and %d dying groups stay, with them %d and %d", sessions, size, without, stayed, with, stay)
		if with <= without/4 {
			return
		}
	}
	t.Errorf("in each of %d runs with reclaims more than a quarter of %d bytes stayed", attempts, without)
}

// fresh creates a file without pages in the page cache.
func fresh(t *testing.T, name string, size int) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}
