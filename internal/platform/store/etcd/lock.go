package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/flock"
)

// ErrInUse means that another server uses the data directory.
var ErrInUse = errors.New("data directory is in use")

// lockDir locks the data directory for this process, or fails at once if another
// process has it (etcd itself would wait silently). Closing the file, or the end of
// the process, releases it.
func lockDir(dir string) (*os.File, error) {
	lock, err := tryLock(dir, filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	// Another etcd may use this directory too; it locks its database.
	db, err := tryLock(dir, dbPath(dir), os.O_RDWR)
	switch {
	case err == nil:
		db.Close()
	case !errors.Is(err, os.ErrNotExist):
		lock.Close()
		return nil, err
	}
	return lock, nil
}

func tryLock(dir, path string, flag int) (*os.File, error) {
	f, err := flock.Open(path, flag)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, holdfast.WithHint(fmt.Errorf("%w: %s", ErrInUse, dir),
			"another holdfast agent runs with this data directory: stop it, or choose another directory")
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

func dbPath(dir string) string { return filepath.Join(dir, "member", "snap", "db") }
