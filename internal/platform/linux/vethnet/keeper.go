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

// keeperFile is the file, beside the directory of addresses, that the processes that
// maintain a net lock.
func (n *Net) keeperFile() string { return n.dir + ".keeper" }

// Keep marks the net as maintained by this process until release or its end:
// RemoveAbandoned leaves it alone. Several processes may keep a net.
func (n *Net) Keep() (release func(), err error) {
	if err := os.MkdirAll(filepath.Dir(n.dir), 0o700); err != nil {
		return nil, fmt.Errorf("maintain bridge %s: %w", n.bridge, err)
	}
	f, err := flock.Lock(n.keeperFile(), os.O_CREATE|os.O_RDONLY, unix.LOCK_SH) // RemoveAbandoned holds it only briefly
	if err != nil {
		return nil, fmt.Errorf("maintain bridge %s: %w", n.bridge, err)
	}
	return func() { _ = f.Close() }, nil
}

// RemoveAbandoned is Remove unless a process maintains the net. kept reports that one
// does; then RemoveAbandoned does nothing and need not be called again.
func (n *Net) RemoveAbandoned() (kept bool, err error) {
	f, err := flock.Open(n.keeperFile(), os.O_RDONLY)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err == nil:
		defer f.Close()
	case !errors.Is(err, fs.ErrNotExist): // without the file no process ever did
		return false, fmt.Errorf("remove bridge %s: %w", n.bridge, err)
	}
	return false, n.Remove(nil)
}
