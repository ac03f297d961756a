package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast"
)

// ErrInUse means that another server uses the data directory.
var ErrInUse = errors.New("data directory is in use")

// lockDir locks the data directory for this process, or fails at once if another
// process has it (etcd itself would wait silently). Closing the file, or the end of
// the process, releases it.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := tryLock(f, dir); err != nil {
		f.Close()
		return nil, err
	}
	// Another etcd may use this directory too; it locks its database.
	db, err := os.OpenFile(dbPath(dir), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = tryLock(db, dir)
		db.Close()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func tryLock(f *os.File, dir string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return holdfast.WithHint(fmt.Errorf("%w: %s", ErrInUse, dir),
			"another holdfast agent runs with this data directory: stop it, or choose another directory")
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

func dbPath(dir string) string { return filepath.Join(dir, "member", "snap", "db") }
