package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"holdfast"
)

// prefix begins the name of every directory and cgroup of a lab.
const prefix = "holdfast-lab-"

// workspace is a fresh directory for one engine. Its lock is held as long as
// the process that made it lives; that is how the next one knows the dead.
type workspace struct {
	dir  string
	name string // last element of dir, and name of the engine's cgroup
	lock *os.File
}

// bases are the places where a workspace may be.
func bases() []string {
	return slices.Compact([]string{filepath.Clean(os.TempDir()), "/var/tmp"})
}

// newWorkspace removes what dead labs left and makes a directory that can hold
// an engine's data: in base, or where that is "", in the first of bases that
// can.
func newWorkspace(base string, inMemory bool) (*workspace, error) {
	candidates := bases()
	if base != "" {
		candidates = []string{base}
	}
	var failed []error
	for _, base := range candidates {
		if err := sweep(base); err != nil {
			return nil, fmt.Errorf("remove what an earlier lab left in %s: %w", base, err)
		}
	}
	for _, base := range candidates {
		w, err := makeWorkspace(base, inMemory)
		if err == nil {
			return w, nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", base, err))
	}
	return nil, holdfast.WithHint(fmt.Errorf("no place for a private engine's data: %w", errors.Join(failed...)),
		"set TMPDIR to a directory on a disk with ext4, xfs or btrfs")
}

func makeWorkspace(base string, inMemory bool) (*workspace, error) {
	// A sweep of another lab may take a new directory for a dead one until
	// it is locked; then the next try has another name.
	for range 10 {
		dir, err := os.MkdirTemp(base, prefix)
		if err != nil {
			return nil, err
		}
		lock, err := lockDir(dir)
		if err != nil {
			continue
		}
		w := &workspace{dir: dir, name: filepath.Base(dir), lock: lock}
		if err := canOverlay(dir, inMemory); err != nil {
			return nil, errors.Join(err, w.remove())
		}
		return w, nil
	}
	return nil, errors.New("no directory could be locked")
}

// lockDir locks a directory, without waiting, and makes sure that it is still
// the one at its path.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	locked, err := f.Stat()
	if err == nil {
		var atPath os.FileInfo
		if atPath, err = os.Lstat(dir); err == nil && !os.SameFile(locked, atPath) {
			err = os.ErrNotExist
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// remove deletes the workspace with its cgroups and mounts and lets go of it.
// It is the last call.
func (w *workspace) remove() error {
	err := errors.Join(
		removeCgroup(w.name),
		detachBelow(w.dir),
	)
	// The directory goes last, and only when the rest is gone: its presence
	// is what makes the next sweep try again.
	if err == nil {
		err = os.RemoveAll(w.dir)
	}
	return errors.Join(err, w.lock.Close())
}

// sweep removes the workspaces in base whose process is dead.
func sweep(base string) error {
	entries, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !e.IsDir() || !ours(e) {
			continue
		}
		dir := filepath.Join(base, e.Name())
		lock, err := lockDir(dir)
		if err != nil {
			continue // alive, or just gone
		}
		dead := workspace{dir: dir, name: e.Name(), lock: lock}
		failed = append(failed, dead.remove())
	}
	return errors.Join(failed...)
}

// ours reports whether a directory was made by a lab of this user: in a
// directory that all may write to, a name alone proves nothing.
func ours(e os.DirEntry) bool {
	fi, err := e.Info()
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
