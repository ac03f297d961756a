package gc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast"
)

// ErrBusy says that another collector works on the same engine right now.
var ErrBusy = fmt.Errorf("another collection runs on this engine: %w", holdfast.ErrBusy)

// lockCycle locks for a cycle, across processes (flock(2)): the kernel gives it
// back when its holder dies. What is locked is the engine's data root itself, which
// every collector of that engine finds, whatever its own configuration, and which
// is there however full the disk is; else a file in fallback.
func lockCycle(dataRoot, fallback string) (*os.File, error) {
	f, err := openLock(dataRoot, fallback)
	if err != nil {
		return nil, fmt.Errorf("lock the collection: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		f.Close()
		return nil, ErrBusy
	case err != nil:
		f.Close()
		return nil, fmt.Errorf("lock the collection: %w", err)
	}
	return f, nil
}

func openLock(dataRoot, fallback string) (*os.File, error) {
	if dataRoot != "" {
		return os.OpenFile(dataRoot, os.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	if err := os.MkdirAll(fallback, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(fallback, "gc.lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}
