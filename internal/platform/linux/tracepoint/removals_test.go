package tracepoint

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

// A removed group that a page keeps is counted for its ancestors only, until the page
// is freed.
func TestRemovals(t *testing.T) {
	needRoot(t)
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := mounts.Memory()
	if !ok {
		t.Fatal("no hierarchy with the memory controller is mounted")
	}
	top, err := os.MkdirTemp(m.Point, "holdfast-removals-")
	if err != nil {
		t.Fatal(err)
	}
	parent := filepath.Join(top, "parent")
	dead := filepath.Join(parent, "dead")
	t.Cleanup(func() {
		for _, dir := range []string{dead, parent, top} {
			_ = os.Remove(dir) // what is left of them
		}
	})
	r, err := CountRemovals()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	if m.V2 {
		for _, dir := range []string{top, parent} {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Mkdir(dead, 0o755); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "page")
	if out, err := exec.Command("sh", "-c", `echo 0 > "$1/cgroup.procs" && printf %4096s x > "$2"`, "sh", dead, page).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before, _, err := r.Totals()
	if err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the group can be removed", func() bool { return os.Remove(dead) == nil }) // its last process is exiting
	if after, _, err := r.Totals(); err != nil || after == before {
		t.Errorf("removed were %d groups and then %d: %v", before, after, err)
	}
	above := func(dir string) uint64 {
		t.Helper()
		left, err := r.Left()
		if err != nil {
			t.Fatal(err)
		}
		return left[Above(dir[len(m.Point):])]
	}
	for _, dir := range []string{top, parent} {
		if n := above(dir); n != 1 {
			t.Errorf("%d groups are left below %s, one is", n, dir)
		}
	}
	if n := above(dead); n != 0 {
		t.Errorf("%d groups are left below the one that is", n)
	}
	if n := above(m.Point + "/"); n == 0 {
		t.Error("none is left below the root")
	}
	if err := os.Remove(page); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "it has gone", func() bool { return above(parent) == 0 && above(top) == 0 })
	_, gone, err := r.Totals()
	if err != nil || gone == 0 {
		t.Errorf("%d groups have gone: %v", gone, err)
	}
	left, err := r.Left()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Forget(left, nil); err != nil {
		t.Error(err)
	}
}
