package cure

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
)

// A lock excludes others from the group, from those above it and from those below it, and
// from no other group.
func TestLockGroup(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "a/other"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := probe.Host{Groups: cgroup.Mounts{{Point: dir, Root: "/", V2: true}}}
	unlock, err := lockGroup(h, "/a/b")
	if err != nil {
		t.Fatal(err)
	}
	for path, free := range map[string]bool{"/": false, "/a": false, "/a/b": false, "/a/b/c": false, "/a/other": true} {
		other, err := lockGroup(h, path)
		switch {
		case free && err != nil, !free && !errors.Is(err, holdfast.ErrBusy):
			t.Errorf("%s: %v", path, err)
		case free:
			other()
		}
	}
	unlock()
	again, err := lockGroup(h, "/")
	if err != nil {
		t.Fatal(err)
	}
	again()
}
