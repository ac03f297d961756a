package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"holdfast"
	"holdfast/internal/platform/linux/flock"
)

// prefix begins the name of every directory and cgroup of a lab.
const prefix = "holdfast-lab-"

// workspace is a fresh directory for one engine. Its lock is held as long as
// the process that made it lives; that is how the next one knows the dead.
type workspace struct {
	dir  string
	name string // last element of dir, and name of the engine's cgroup
	lock *flock.Dir
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
	dir, err := flock.MkdirTemp(base, prefix)
	if err != nil {
		return nil, err
	}
	w := workspaceIn(dir)
	if err := canOverlay(w.dir, inMemory); err != nil {
		return nil, errors.Join(err, w.remove())
	}
	return w, nil
}

func workspaceIn(dir *flock.Dir) *workspace {
	return &workspace{dir: dir.Path, name: dir.Name(), lock: dir}
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
	return flock.Dead(base, prefix, func(dir *flock.Dir) error { return workspaceIn(dir).remove() })
}
