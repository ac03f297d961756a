package listenfd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// envNotify is the variable with a service manager's socket (sd_notify(3)).
const envNotify = "NOTIFY_SOCKET"

// Managed reports whether this process runs under a service manager that accepts
// notifications.
func Managed() bool { return os.Getenv(envNotify) != "" }

// Store leaves the sockets with the service manager, if there is one. The manager
// passes them to the next process of the service under the same names, after a
// restart and after a crash. It keeps a socket only once. A manager without a store
// ignores the message.
func Store(sockets ...*Socket) error {
	for _, s := range sockets {
		// FDPOLL=0: only this process makes the manager drop the socket.
		if err := notify("FDSTORE=1\nFDNAME="+s.Name+"\nFDPOLL=0", s.fd); err != nil {
			return fmt.Errorf("leave socket %s with the service manager: %w", s.Name, err)
		}
	}
	return nil
}

// Unstore makes the service manager drop the sockets with a name.
func Unstore(name string) error {
	if err := notify("FDSTOREREMOVE=1\nFDNAME=" + name); err != nil {
		return fmt.Errorf("take socket %s from the service manager: %w", name, err)
	}
	return nil
}

// HandOver tells the service manager, if there is one, that another process is the
// service's main process from now on. It waits at most limit until the manager has
// read the message: the manager ignores one from a process that has ended.
func HandOver(pid int, limit time.Duration) error {
	if !Managed() {
		return nil
	}
	if err := notify(fmt.Sprintf("MAINPID=%d", pid)); err != nil {
		return fmt.Errorf("name process %d to the service manager as its main process: %w", pid, err)
	}
	if err := barrier(limit); err != nil {
		return fmt.Errorf("wait until the service manager has read that process %d is its main process: %w", pid, err)
	}
	return nil
}

// barrier returns when the manager has read all messages: it closes the barrier's
// descriptor then (sd_notify_barrier(3)).
func barrier(limit time.Duration) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = errors.Join(notify("BARRIER=1", int(w.Fd())), w.Close(), r.SetReadDeadline(time.Now().Add(limit)))
	if err != nil {
		return err
	}
	switch _, err := r.Read(make([]byte, 1)); {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("it does not answer")
	default:
		return err
	}
}

// notify sends one message with descriptors; without a manager it does nothing.
func notify(message string, fds ...int) error {
	path := os.Getenv(envNotify)
	if path == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	// Sendmsg accepts a leading "@" for an abstract name.
	return unix.Sendmsg(fd, []byte(message), rights, &unix.SockaddrUnix{Name: path}, unix.MSG_NOSIGNAL)
}
