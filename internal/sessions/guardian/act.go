package guardian

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/frozen"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pidfd"
)

// perform carries out one undo. Processes and files that are gone are no error.
func (pt part) perform() error {
	switch pt.kind {
	case Continue:
		return signalAll(pt.processes, unix.SIGCONT)
	case Restore:
		var err error
		for _, l := range pt.limits {
			err = errors.Join(err, l.restore())
		}
		return err
	case Thaw:
		_, err := frozen.Thaw(pt.dir)
		return err
	case Leave:
		var err error
		for _, c := range pt.nets {
			_, e := leave(c, true)
			err = errors.Join(err, e)
		}
		return err
	}
	return fmt.Errorf("unknown undo %q", pt.kind)
}

// signalAll signals every process that is still there.
func signalAll(processes []*pidfd.Process, sig unix.Signal) error {
	var err error
	for _, p := range processes {
		if e := p.Signal(sig); !errors.Is(e, pidfd.ErrGone) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// restore writes the old limit back if the file has the low one. Another process may
// write the file between the two; the kernel has no compare-and-swap for it.
func (l Limit) restore() error {
	if err := l.validate(); err != nil { // it may be from a file
		return err
	}
	now, err := kfile.Read(l.File, 4096)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || strings.TrimSpace(string(now)) != l.Low {
		return err
	}
	if err := kfile.Write(l.File, l.Old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
