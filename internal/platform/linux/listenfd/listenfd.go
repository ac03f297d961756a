// Package listenfd keeps sockets listening while the accepting process changes. It
// takes sockets from a service manager (sd_listen_fds(3)), leaves them in its store
// (sd_pid_notify_with_fds(3)), and passes them between processes over a unix socket
// (SCM_RIGHTS, unix(7)). As long as any process has the descriptor, the kernel
// completes connects and keeps them in the socket's queue.
package listenfd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Most is the largest number of sockets in one transfer.
const Most = 16

// Socket is a descriptor of a listening stream socket, separate from that of its
// listeners. Only Close closes it, not the listener of Listen.
type Socket struct {
	Name string
	fd   int
}

// Of returns another descriptor of a listener's socket.
func Of(name string, l syscall.Conn) (*Socket, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", name, err)
	}
	fd, dupErr := -1, error(nil)
	// Not by File: os.File.Fd makes the socket blocking, in all processes that have
	// it.
	err = raw.Control(func(own uintptr) { fd, dupErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 3) })
	if err = errors.Join(err, dupErr); err != nil {
		return nil, fmt.Errorf("socket %s: another descriptor: %w", name, err)
	}
	return &Socket{name, fd}, nil
}

// Wrap returns a Socket that owns a descriptor of a listening socket.
func Wrap(name string, fd int) *Socket { return &Socket{name, fd} }

// FD returns the descriptor, which the Socket keeps.
func (s *Socket) FD() int { return s.fd }

// Listen returns a listener that accepts on the socket. Closing the listener does not
// remove a unix socket's file.
func (s *Socket) Listen() (net.Listener, error) {
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("socket %s: another descriptor: %w", s.Name, err)
	}
	f := os.NewFile(uintptr(fd), s.Name)
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", s.Name, err)
	}
	return l, nil
}

// Close closes this descriptor.
func (s *Socket) Close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

// The variables with the descriptors that a service manager passes
// (sd_listen_fds(3)).
const (
	envPID   = "LISTEN_PID"
	envCount = "LISTEN_FDS"
	envNames = "LISTEN_FDNAMES"
)

// firstFD is the first of them (SD_LISTEN_FDS_START).
const firstFD = 3

// FromEnvironment takes the sockets that a service manager has passed to this
// process, and removes the variables, which are not for its children. It may be
// called once, early, before other code can use the descriptors. It closes
// descriptors that are not listening stream sockets, and returns their names in
// skipped.
func FromEnvironment() (sockets []*Socket, skipped []string, err error) {
	pid, count, names := os.Getenv(envPID), os.Getenv(envCount), os.Getenv(envNames)
	for _, name := range []string{envPID, envCount, envNames} {
		if err := os.Unsetenv(name); err != nil {
			return nil, nil, err
		}
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, nil, nil // none, or for another process
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > Most {
		return nil, nil, fmt.Errorf("%s is %q, it has to be a number up to %d", envCount, count, Most)
	}
	fds := make([]int, n)
	for i := range fds {
		fds[i] = firstFD + i
		unix.CloseOnExec(fds[i])
	}
	sockets, skipped = adopt(fds, strings.Split(names, ":"))
	return sockets, skipped, nil
}

// adopt turns descriptors into sockets, and closes those that do not listen.
func adopt(fds []int, names []string) (sockets []*Socket, skipped []string) {
	for i, fd := range fds {
		name := ""
		if i < len(names) {
			name = names[i]
		}
		if listening(fd) && name != "" {
			sockets = append(sockets, &Socket{name, fd})
			continue
		}
		unix.Close(fd)
		skipped = append(skipped, name)
	}
	return sockets, skipped
}

func listening(fd int) bool {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return false
	}
	is, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && is == 1
}

// Send sends a message with up to Most descriptors. This process keeps its own.
func Send(c *net.UnixConn, message []byte, fds []int) error {
	_, _, err := c.WriteMsgUnix(message, unix.UnixRights(fds...), nil)
	return err
}

// Receive reads one message into buf, from a socket that preserves message
// boundaries, and returns its descriptors. The caller passes them to Adopt.
func Receive(c *net.UnixConn, buf []byte) (n int, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*Most))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return 0, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return 0, nil, err
	}
	for _, m := range messages {
		got, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // another type of control message
		}
		for _, fd := range got {
			unix.CloseOnExec(fd)
		}
		fds = append(fds, got...)
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return 0, nil, errors.New("a message was cut off")
	}
	return n, fds, nil
}

// Adopt turns the descriptors of Receive into sockets with these names. If one does
// not listen, it closes all and returns an error.
func Adopt(fds []int, names []string) ([]*Socket, error) {
	sockets, skipped := adopt(fds, names)
	if len(skipped) > 0 || len(sockets) != len(names) {
		for _, s := range sockets {
			s.Close()
		}
		return nil, fmt.Errorf("%d descriptors for %d sockets, of which %d do not listen", len(fds), len(names), len(skipped))
	}
	return sockets, nil
}
