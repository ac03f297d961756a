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

// lock is held for a cycle, across processes (flock(2)): the kernel gives it back
// when its holder dies. It is in the engine's data root, where every collector of
// that engine finds it, whatever its own configuration; else in fallback.
func lockCycle(dataRoot, fallback string) (*os.File, error) {
	dir := fallback
	if dataRoot != "" {
		dir = filepath.Join(dataRoot, ownDir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock the collection: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
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
