// Package child starts small processes of the product's own binary that guard or
// hold something for their starter, and exchanges JSON messages with them.
//
// Such a process has its own session, so that a signal to the starter's process group
// (Ctrl-C) does not reach it. Start gives it one end of a socket pair as descriptor
// SocketFD. The kernel closes the other end when the starter dies. The child then reads
// EOF (unix(7)).
package child

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// SocketFD is the child's end of the socket pair: the first of exec.Cmd's
// ExtraFiles. The caller's own ExtraFiles begin at descriptor SocketFD+1.
const SocketFD = 3

// Command is a command that is detached from its starter. It has its own session, the
// working directory /, an empty standard input and output, and only the environment
// env.
func Command(argv []string, env ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// Pair makes a socket pair. The type is SOCK_SEQPACKET, which preserves message
// boundaries, or SOCK_STREAM.
func Pair(typ int) (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "starter")
	if ours, err = Adopt(fds[0]); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// Adopt makes a connection from the descriptor of a unix socket, and closes the
// descriptor.
func Adopt(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "unix socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("descriptor %d is a %T, not a unix socket", fd, c)
	}
	return u, nil
}

// Start calls start, which calls cmd.Start, with one end of a socket pair of type
// typ as the child's descriptor SocketFD, and returns the other end. This process
// closes its copy of the child's end, because a copy would prevent EOF.
func Start(cmd *exec.Cmd, typ int, start func() error) (*net.UnixConn, error) {
	ours, theirs, err := Pair(typ)
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = append([]*os.File{theirs}, cmd.ExtraFiles...)
	err = start()
	theirs.Close()
	if err != nil {
		ours.Close()
		return nil, err
	}
	return ours, nil
}
