package tcpmigrate

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// namespace is the file of the calling thread's network namespace. All processes in
// the namespace see the same file, wherever they have /proc mounted. It carries two
// independent kinds of locks. A process holds flock(2) while it reads and changes the
// setting. An open file description lock (F_OFD_SETLK, fcntl(2)) is shared by all
// processes that have switched from 0. The kernel releases both when a process dies.
const namespace = "/proc/thread-self/ns/net"

// lockLimit is how long another process may hold the lock, which it needs for a few
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
		return false, fmt.Errorf("find other users of tcp_migrate_req: %w", err)
	}
	return l.Type != unix.F_UNLCK, nil
}

// use takes a share, which ns holds until leave or Close.
func use(ns *os.File) error { return setShare(ns, unix.F_RDLCK, "take a share in") }

func leave(ns *os.File) error { return setShare(ns, unix.F_UNLCK, "leave") }

func setShare(ns *os.File, kind int16, what string) error {
	l := share(kind)
	if err := unix.FcntlFlock(ns.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		return fmt.Errorf("%s tcp_migrate_req: %w", what, err)
	}
	return nil
}

// share is the lock of the byte that stands for a share.
func share(kind int16) unix.Flock_t {
	return unix.Flock_t{Type: kind, Whence: io.SeekStart, Len: 1}
}
