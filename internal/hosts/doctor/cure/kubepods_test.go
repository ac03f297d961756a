package cure_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/test/poll"
)

// The kubelet's slices and pods are found with both of its drivers. Each is squeezed
// separately: slices below which pods have died, and living pods in which containers have
// died.
func TestKubepods(t *testing.T) {
	e := env(t)
	if _, err := cure.Kubepods(e.Host); err != nil && !errors.Is(err, holdfast.ErrNotFound) && !errors.Is(err, cure.ErrNothing) { // a concurrent test may have pods
		t.Fatal(err)
	}
	const top, uid = "/cure-test-kube", "5d9a3b62-1c52-4f0e-9d8a-0f0e7c1b2a3d"
	slice, pod := top+"/kubepods/burstable", top+"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"+strings.ReplaceAll(uid, "-", "_")+".slice"
	for _, leaf := range []string{slice, pod} {
		path := ""
		for _, part := range strings.Split(leaf, "/")[1:] {
			path += "/" + part
			if _, err := os.Stat(memory(t, path).Dir()); err == nil {
				continue
			}
			if g := newGroup(t, path); g.V2 {
				parent := memory(t, filepath.Dir(path))
				if err := os.WriteFile(filepath.Join(parent.Dir(), "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	dir := onDisk(t)
	const groups, each = 12, 1 << 20
	for _, parent := range []string{slice, pod} {
		for i := range groups {
			g := newGroup(t, parent+"/dead-"+strconv.Itoa(i))
			if g.V2 && i == 0 {
				if err := os.WriteFile(filepath.Join(filepath.Dir(g.Dir()), "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
					t.Fatal(err)
				}
			}
			name := filepath.Join(dir, filepath.Base(parent)+strconv.Itoa(i))
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			_ = start(t, roleWriter, g.Dir(), name, "0", strconv.Itoa(each)).Wait() // another goroutine may have waited for it
			poll.Until(t, "a dead group", func() bool { err := unix.Rmdir(g.Dir()); return err == nil || errors.Is(err, unix.ENOENT) })
		}
	}
	var found []string
	poll.Until(t, "both are found", func() bool { // the kernel adds up its counts within two seconds
		list, err := cure.Kubepods(e.Host)
		if err != nil && !errors.Is(err, cure.ErrNothing) {
			t.Fatal(err)
		}
		found = list
		return slices.Contains(list, slice) && slices.Contains(list, pod)
	})
	for _, path := range found {
		if path != slice && path != pod {
			continue // another group of this host
		}
		r := apply(t, e, cure.Memcg(path))
		if f := figure(t, r, "page cache of dying"); f.Before < groups*each*0.9 || f.After > 0.1*f.Before {
			t.Errorf("less than 90 %% was freed: %+v", f)
		}
	}
	if list, err := cure.Kubepods(e.Host); slices.Contains(list, slice) || slices.Contains(list, pod) || err != nil && !errors.Is(err, cure.ErrNothing) {
		t.Errorf("after the cures: %v, %v", list, err)
	}
}
