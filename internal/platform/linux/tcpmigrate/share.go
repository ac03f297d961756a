package tcpmigrate

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// namespace is the file of the calling thread's network namespace. It is the same
// one for all that are in there, wherever they have /proc mounted, and bears two
// kinds of locks that know nothing of each other: flock(2), which one has while it
// looks and switches, and an open file description's (F_OFD_SETLK, fcntl(2)),
// which everybody shares who has switched from 0. The kernel takes either from
// the dead.
const namespace = "/proc/thread-self/ns/net"

// lockLimit is how long another may have the lock, which is needed for some
// system calls.
const lockLimit = 10 * time.Second

// lock locks the setting until the file is closed, or unlock.
func lock() (*os.File, error) {
	ns, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockLimit); ; time.Sleep(time.Millisecond) {
		err = unix.Flock(int(ns.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return ns, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR || time.Now().After(end) {
			ns.Close()
			return nil, fmt.Errorf("lock tcp_migrate_req: %w", err)
		}
	}
}

func unlock(ns *os.File) error { return unix.Flock(int(ns.Fd()), unix.LOCK_UN) }

// inUse reports whether an open file other than ns has a share.
func inUse(ns *os.File) (bool, error) {
	l := share(unix.F_WRLCK)
	if err := unix.FcntlFlock(ns.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, fmt.Errorf("ask who uses tcp_migrate_req: %w", err)
	}
	return l.Type != unix.F_UNLCK, nil
}

// use takes a share, which is ns's until leave or its end.
func use(ns *os.File) error {
	l := share(unix.F_RDLCK)
	if err := unix.FcntlFlock(ns.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		return fmt.Errorf("take a share in tcp_migrate_req: %w", err)
	}
	return nil
}

func leave(ns *os.File) error {
	l := share(unix.F_UNLCK)
	if err := unix.FcntlFlock(ns.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		return fmt.Errorf("leave tcp_migrate_req: %w", err)
	}
	return nil
}

// share is the byte that a share locks.
func share(kind int16) unix.Flock_t {
	return unix.Flock_t{Type: kind, Whence: io.SeekStart, Len: 1}
}
