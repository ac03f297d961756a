package gc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast"
)

// ErrBusy means that another collector works on the same engine.
var ErrBusy = fmt.Errorf("another collection runs on this engine: %w", holdfast.ErrBusy)

// lockCycle takes the lock for a cycle, across processes, with flock(2); the
// kernel releases it when the holder dies. It locks the engine's data root
// itself: every collector of that engine finds it under any configuration, and it
// exists on a full disk. Without a local data root it locks a file in fallback.
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
