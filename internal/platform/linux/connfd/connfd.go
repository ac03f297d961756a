// Package connfd moves open connections between processes. The sender takes the descriptors
// out of its connections and passes them over a unix socket (SCM_RIGHTS, unix(7)), together
// with what the receiver has to know about each. The peers of the connections notice
// nothing: the kernel keeps what they send meanwhile.
package connfd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Conn is an open connection, or several that belong together, on the way to its next user.
// One goroutine at a time may use it.
type Conn struct {
	FDs   []int           // of TCP sockets; the Conn owns them
	State json.RawMessage // for the receiver
}

// Close closes the descriptors.
func (c Conn) Close() {
	for _, fd := range c.FDs {
		unix.Close(fd)
	}
}

// Take returns a descriptor of a connection's socket, which the caller owns, and closes the
// connection. The socket stays open.
func Take(c *net.TCPConn) (int, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(own uintptr) { fd, dupErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	if dupErr != nil {
		return -1, fmt.Errorf("dup: %w", dupErr)
	}
	return fd, nil
}

// errKind means that a descriptor is not that of a TCP connection.
var errKind = errors.New("the descriptor is not a TCP connection")

// Open is the reverse of Take. It takes the descriptor over, also if it fails.
func Open(fd int) (*net.TCPConn, error) {
	f := os.NewFile(uintptr(fd), "connection")
	if f == nil {
		return nil, errKind
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		c.Close()
		return nil, errKind
	}
	return tcp, nil
}

// entry is a Conn in the file of Pack.
type entry struct {
	FDs   int             `json:"fds"`
	State json.RawMessage `json:"state"`
}

// Pack returns all descriptors in one sequence. The first is that of a new file in memory
// with the states. The caller closes this one; the others stay with the Conns.
func Pack(conns []Conn) (fds []int, err error) {
	file, err := unix.MemfdCreate("connections", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	entries := make([]entry, 0, len(conns))
	fds = append(fds, file)
	for _, c := range conns {
		entries = append(entries, entry{len(c.FDs), c.State})
		fds = append(fds, c.FDs...)
	}
	b, err := json.Marshal(entries)
	if err == nil {
		err = writeAll(file, b)
	}
	if err != nil {
		unix.Close(file)
		return nil, fmt.Errorf("the states of connections: %w", err)
	}
	return fds, nil
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil && err != unix.EINTR {
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}

// Unpack is the reverse of Pack. It takes all descriptors over, also if it fails.
func Unpack(fds []int) (conns []Conn, err error) {
	defer func() {
		if err != nil {
			Conn{FDs: fds}.Close()
		}
	}()
	if len(fds) == 0 {
		return nil, errors.New("there is no descriptor")
	}
	size, err := unix.Seek(fds[0], 0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("the states of connections: %w", err)
	}
	b := make([]byte, size)
	if _, err := unix.Pread(fds[0], b, 0); err != nil {
		return nil, fmt.Errorf("the states of connections: %w", err)
	}
	var entries []entry
	if err := json.Unmarshal(b, &entries); err != nil {
		return nil, fmt.Errorf("the states of connections: %w", err)
	}
	rest := fds[1:]
	for _, e := range entries {
		if e.FDs < 0 || e.FDs > len(rest) {
			return nil, fmt.Errorf("%d descriptors for %d connections are too few", len(fds)-1, len(entries))
		}
		conns = append(conns, Conn{rest[:e.FDs:e.FDs], e.State})
		rest = rest[e.FDs:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d descriptors belong to no connection", len(rest))
	}
	unix.Close(fds[0])
	return conns, nil
}
