// Package holder changes the network namespace of a process in another mount and pid
// namespace, a container: the process runs Program, and gets each namespace as a
// descriptor over a unix socket. The namespace of a process cannot be changed from
// outside (setns(2)).
package holder

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// enterLimit bounds the wait for the answer to one descriptor. A holder has nothing else
// to do, so a longer wait is for a stopped process or a host that stands still.
const enterLimit = 5 * time.Second

// Listener waits for one holder. One goroutine uses it.
type Listener struct{ l *net.UnixListener }

// Listen listens on the file "socket" in the directory, which is to be mounted at Dir.
// Only root should reach the directory.
func Listen(dir string) (*Listener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("listen for a holder: %w", err)
	}
	defer d.Close()
	// By way of the descriptor, because the address of a socket has 108 bytes at most.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), filepath.Base(Socket))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("listen for a holder: %w", err)
	}
	l.SetUnlinkOnClose(false) // the path is valid until d is closed
	return &Listener{l}, nil
}

// Close ends the listener, and no connection.
func (l *Listener) Close() { _ = l.l.Close() }

// ErrStranger means that another process than the holder has connected.
var ErrStranger = errors.New("another process has connected")

// Accept returns the connection of the process pid, which runs Program. It waits until
// the given time. ErrStranger.
func (l *Listener) Accept(pid int, until time.Time) (*Conn, error) {
	err := l.l.SetDeadline(until)
	var c *net.UnixConn
	if err == nil {
		c, err = l.l.AcceptUnix()
	}
	if err != nil {
		return nil, fmt.Errorf("wait for the holder %d: %w", pid, err)
	}
	peer, err := peerOf(c)
	if err == nil && int(peer.Pid) != pid {
		err = fmt.Errorf("process %d: %w", peer.Pid, ErrStranger)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the holder %d: %w", pid, err), c.Close())
	}
	return &Conn{c}, nil
}

// peerOf returns the credentials of the other end's process (SO_PEERCRED, unix(7)).
func peerOf(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	ctl := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(ctl, err)
}

// Conn is the connection to a holder, which exits when it ends. One goroutine at a time
// uses it.
type Conn struct{ c *net.UnixConn }

// Enter moves the holder to a network namespace, and returns when it is there. After an
// error the holder's namespace is unknown, so it is not used any more.
func (c *Conn) Enter(namespace *os.File) error {
	if err := c.enter(namespace); err != nil {
		return fmt.Errorf("change the network namespace of a holder: %w", err)
	}
	return nil
}

func (c *Conn) enter(namespace *os.File) error {
	if err := c.c.SetDeadline(time.Now().Add(enterLimit)); err != nil {
		return err
	}
	if _, _, err := c.c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(namespace.Fd())), nil); err != nil {
		return err
	}
	var answer [4]byte
	n, err := c.c.Read(answer[:])
	if err != nil {
		return err
	}
	if n != len(answer) {
		return fmt.Errorf("its answer has %d bytes", n)
	}
	if result := int32(binary.NativeEndian.Uint32(answer[:])); result != 0 {
		return fmt.Errorf("setns: %w", unix.Errno(-result))
	}
	return nil
}

// Close ends the connection, and with it the holder.
func (c *Conn) Close() { _ = c.c.Close() }
