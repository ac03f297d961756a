package lab

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/platform/linux/flock"
)

// TestSweep has a directory of each kind: of a dead lab, of a living one, of
// another user, and of another program.
func TestSweep(t *testing.T) {
	base := t.TempDir()
	mkdir := func(name string) string {
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dead, living, foreign, other := mkdir(prefix+"1"), mkdir(prefix+"2"), mkdir(prefix+"3"), mkdir("other-1")
	outside := mkdir("outside")
	if err := os.Symlink(outside, filepath.Join(base, prefix+"4")); err != nil {
		t.Fatal(err)
	}
	lock, err := flock.Open(living, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := os.Chown(foreign, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := sweep(base); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead lab's directory: %v", err)
	}
	for _, dir := range []string{living, foreign, other, filepath.Join(outside, "data")} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
	// Its owner gone, the directory of the living goes as well.
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sweep(base); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(living); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory after its owner: %v", err)
	}
}

func TestParseMount(t *testing.T) {
	for line, want := range map[string]mount{
		"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue": {"/mnt1", "/mnt2", "ext3", "/dev/root"},
		`40 27 0:40 / /a\040b\134c rw - tmpfs shm rw`:                                    {"/", `/a b\c`, "tmpfs", "shm"},
		`41 27 0:4 net:[4026532] /run/netns/x rw shared:1 master:2 - nsfs nsfs rw`:       {"net:[4026532]", "/run/netns/x", "nsfs", "nsfs"},
	} {
		if got, err := parseMount(line); err != nil || got != want {
			t.Errorf("%s: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{"", "36 35 98:0 /", "36 35 98:0 /mnt1 /mnt2 rw - ext3"} {
		if got, err := parseMount(line); err == nil {
			t.Errorf("%q: %+v and no error", line, got)
		}
	}
}
