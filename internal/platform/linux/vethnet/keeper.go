package vethnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/flock"
)

// keeperFile, beside the directory of addresses, is locked by who looks after a net.
func (n *Net) keeperFile() string { return n.pool.dir + ".keeper" }

// Keep says that this process looks after the net until it lets go of it, or ends:
// RemoveAbandoned leaves it alone meanwhile. Several may.
func (n *Net) Keep() (letGo func(), err error) {
	if err := os.MkdirAll(filepath.Dir(n.pool.dir), 0o700); err != nil {
		return nil, fmt.Errorf("look after bridge %s: %w", n.bridge, err)
	}
	f, err := os.OpenFile(n.keeperFile(), os.O_CREATE|os.O_RDONLY, 0o600)
	if err == nil {
		// Who removes it has it for moments.
		if err = unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look after bridge %s: %w", n.bridge, err)
	}
	return func() { _ = f.Close() }, nil
}

// RemoveAbandoned is Remove for who does not know whether somebody looks after the net.
// kept is that somebody does: then it does nothing, and is not needed any more.
func (n *Net) RemoveAbandoned() (kept bool, err error) {
	f, err := flock.Open(n.keeperFile(), os.O_RDONLY)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err == nil:
		defer f.Close()
	case !errors.Is(err, fs.ErrNotExist): // else nobody ever did
		return false, fmt.Errorf("remove bridge %s: %w", n.bridge, err)
	}
	return false, n.Remove(nil)
}
