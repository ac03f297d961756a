package flock_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/flock"
)

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	const flag = os.O_RDWR | os.O_CREATE
	f, err := flock.Open(path, flag)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := flock.Open(path, flag); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a second lock: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f, err = flock.Open(path, flag)
	if err != nil {
		t.Fatalf("after the first was closed: %v", err)
	}
	f.Close()
	if _, err := flock.Open(path+".none", os.O_RDWR); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// A file that is locked through a symbolic link is not the file at the path.
func TestOpenOfAnotherFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	if _, err := flock.Open(link, os.O_RDWR); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link was locked: %v", err)
	}
}

func TestDead(t *testing.T) {
	base := t.TempDir()
	living, err := flock.MkdirTemp(base, "x-")
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	died, err := flock.MkdirTemp(base, "x-")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(died.Close(), os.Mkdir(filepath.Join(base, "y-1"), 0o700), os.Symlink("y-1", filepath.Join(base, "x-link"))); err != nil {
		t.Fatal(err)
	}
	var found []string
	failure := errors.New("a failure")
	err = flock.Dead(base, "x-", func(d *flock.Dir) error {
		found = append(found, d.Name())
		return errors.Join(failure, d.Close())
	})
	if !errors.Is(err, failure) || !slices.Equal(found, []string{died.Name()}) {
		t.Errorf("found %q (%v), %s is dead", found, err, died.Name())
	}
}
