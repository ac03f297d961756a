package cure

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/flock"
)

// lockGroup keeps other cures from a control group, by its path in the memory hierarchy,
// and from those above and below it, until the process ends or unlock is called. It uses
// flock(2) on the groups' directories: shared for the ancestors, and exclusive for the
// group. An empty path locks nothing.
func lockGroup(h probe.Host, group string) (unlock func(), err error) {
	var held []*os.File
	unlock = func() {
		for _, f := range held {
			f.Close()
		}
	}
	if group == "" {
		return unlock, nil
	}
	m, ok := h.Groups.Memory()
	if !ok {
		return nil, errNoMemory
	}
	how := unix.LOCK_EX
	for at := path.Clean("/" + group); ; at = path.Dir(at) {
		f, err := lockDir(path.Join(m.Point, at), how)
		if err != nil {
			unlock()
			return nil, err
		}
		held, how = append(held, f), unix.LOCK_SH
		if at == "/" {
			return unlock, nil
		}
	}
}

var errNoMemory = errors.New("no hierarchy with the memory controller is mounted")

func lockDir(dir string, how int) (*os.File, error) {
	f, err := flock.Lock(dir, os.O_RDONLY|unix.O_DIRECTORY, how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = holdfast.WithHint(fmt.Errorf("another cure is running on %s: %w", dir, holdfast.ErrBusy), "wait until it ends: every cure is bounded in time")
	}
	return f, err
}
