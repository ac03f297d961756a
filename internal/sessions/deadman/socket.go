package deadman

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A deadman's socket has the pid in its name, so that two can be in one directory
// while containers are moved from one to the other.
const (
	socketPrefix = "deadman-"
	socketSuffix = ".sock"
	logName      = "deadman.log"
)

func socketName(pid int) string { return socketPrefix + strconv.Itoa(pid) + socketSuffix }

// sockets lists the sockets in a directory, including those of dead deadmen.
func sockets(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if n := e.Name(); strings.HasPrefix(n, socketPrefix) && strings.HasSuffix(n, socketSuffix) {
			names = append(names, n)
		}
	}
	return names, nil
}

// short returns an address of dir/name that fits into the 108 bytes of sun_path
// (unix(7)) for a dir of any length. It goes through a descriptor of dir, which done
// closes.
func short(dir, name string) (addr *unix.SockaddrUnix, done func(), err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", dir, err)
	}
	path := "/proc/self/fd/" + strconv.Itoa(fd) + "/" + name
	return &unix.SockaddrUnix{Name: path}, func() { unix.Close(fd) }, nil
}

// listen makes the socket dir/name with access for this user only. It replaces an
// existing one, which was made by an earlier process with the same pid. The socket gets
// its name when it accepts connections: to a client, a refused connection means that
// the deadman has ended.
func listen(dir, name string) (int, error) {
	unnamed := "." + name
	if err := os.Remove(filepath.Join(dir, unnamed)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	addr, done, err := short(dir, unnamed)
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	defer done()
	old := unix.Umask(0o177)
	err = unix.Bind(fd, addr)
	unix.Umask(old)
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, unnamed), filepath.Join(dir, name))
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen on %s: %w", filepath.Join(dir, name), err)
	}
	return fd, nil
}

// errForeign means that the process at the other end of a socket belongs to another
// user.
var errForeign = errors.New("it belongs to another user")

// peerOf returns the process at the other end of a socket: for the server the one
// that connected, for the client the one that listens (SO_PEERCRED, unix(7)).
// errForeign.
func peerOf(fd int) (pid int, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, fmt.Errorf("SO_PEERCRED: %w", err)
	}
	if int(cred.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("process %d of user %d: %w", cred.Pid, cred.Uid, errForeign)
	}
	return int(cred.Pid), nil
}
