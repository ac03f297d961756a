// Package kubelet_test tests the agent on a node with real pods: a kubelet and a containerd,
// with a real API server. It runs in a lab. Other directories and files cover the
// directories and kernel settings of the host that a kubelet would change.
package kubelet_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// tunables are the kernel settings that a kubelet requires, and sets for the whole host
// (pkg/kubelet/cm, setupKernelTunables).
func tunables() map[string]string {
	return map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	}
}

// disguise covers kernel settings, inside this lab only, by values that a kubelet accepts.
func disguise(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for name, value := range tunables() {
		file := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		mount(t, file, filepath.Join("/proc/sys", name), "", unix.MS_BIND)
	}
}

// cover mounts a directory of the test over one of the host, inside this lab.
func cover(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) }) // another process may use it
	}
	dir := filepath.Join(t.TempDir(), "cover")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mount(t, dir, path, "", unix.MS_BIND)
}

// mount mounts until the test's end.
func mount(t *testing.T, source, target, kind string, flags uintptr) {
	t.Helper()
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		t.Fatalf("mount on %s: %v", target, err)
	}
	t.Cleanup(func() { detach(t, target) })
}

// detach unmounts a directory and all mounts below it.
func detach(t *testing.T, target string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == target || strings.HasPrefix(f[4], target+"/")) {
			points = append(points, f[4])
		}
	}
	for _, p := range slices.Backward(points) {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", p, err)
		}
	}
}

// groupOf creates a control group for a kubelet in each hierarchy. At the test's end it kills
// the processes in it.
func groupOf(t *testing.T, name string) {
	t.Helper()
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if i := slices.Index(f, "-"); i > 0 && strings.HasPrefix(f[i+1], "cgroup") {
			dirs = append(dirs, filepath.Join(f[4], name))
		}
	}
	t.Cleanup(func() {
		for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			var failed error
			for _, m := range mounts {
				failed = errors.Join(failed, m.Group("/"+name).Kill())
			}
			for _, dir := range dirs {
				failed = errors.Join(failed, removeTree(dir))
			}
			if failed == nil {
				return
			}
			if time.Since(begin) > time.Minute {
				t.Errorf("control groups are left: %v", failed)
				return
			}
		}
	})
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // v1: they are empty in a new group
			above, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), bytes.TrimSpace(above), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func removeTree(top string) error {
	var dirs []string
	_ = filepath.WalkDir(top, func(dir string, d fs.DirEntry, err error) error { // what has vanished is fine
		if err == nil && d.IsDir() {
			dirs = append(dirs, dir)
		}
		return nil
	})
	var failed error
	for _, dir := range slices.Backward(dirs) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}
