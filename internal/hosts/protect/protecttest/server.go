// Package protecttest has the common parts of the tests of holds: real servers to
// restart, clients in an open loop, the conformance suite that every backend passes, and
// a check for kernel state that is left behind.
package protecttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
)

// Patience limits the wait for an expected event.
const Patience = 60 * time.Second

// RoleServer is the argument that makes a test binary a server. The binary passes the
// next arguments to ServerMain.
const RoleServer = "protecttest-server"

// Serve answers HTTP requests on the addresses (separated by commas) with the sequence
// number of the accepted connection. plain turns off Multipath TCP, which Go's listeners
// use by default. Serve returns only on an error.
func Serve(addresses string, plain bool) error {
	failed := make(chan error, 1)
	for addr := range strings.SplitSeq(addresses, ",") {
		var lc net.ListenConfig
		lc.SetMultipathTCP(!plain)
		l, err := lc.Listen(context.Background(), "tcp", addr)
		if err != nil {
			return err
		}
		go func() { failed <- serveOn(l) }()
	}
	return <-failed
}

type connNumber struct{}

func serveOn(l net.Listener) error {
	var accepted atomic.Int64
	s := http.Server{
		ReadHeaderTimeout: Patience,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, connNumber{}, accepted.Add(1))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if d, err := time.ParseDuration(r.URL.Query().Get("take")); err == nil {
				time.Sleep(d)
			}
			fmt.Fprintf(w, "%d %d\n", r.Context().Value(connNumber{}), os.Getpid())
		}),
	}
	return s.Serve(l)
}

// ServerMain is the main function of a server. Its arguments are the addresses, and
// optionally "plain". It returns the exit code.
func ServerMain(args []string) int {
	if err := Serve(args[0], len(args) > 1 && args[1] == "plain"); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
	}
	return 1
}

// GoServer returns the command of a server on the addresses (separated by commas).
func GoServer(addresses string, more ...string) []string {
	return append([]string{"/proc/self/exe", RoleServer, addresses}, more...)
}

// Server is the process of a server.
type Server struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts a server and returns at once. The server ends with the test at
// the latest. uid is the user that it runs as; 0 is root.
func Start(t testing.TB, uid uint32, argv ...string) *Server {
	t.Helper()
	s := &Server{cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{})}
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: credential(uid)}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait() // by our hand, with a signal
	}()
	t.Cleanup(s.Kill)
	return s
}

// StartFile is Start. It returns the file with the server's pid, and at the end of the test kills
// the process that the file then names: see Restart.
func StartFile(t testing.TB, uid uint32, argv ...string) (pidfile string) {
	t.Helper()
	s := Start(t, uid, argv...)
	pidfile = filepath.Join(t.TempDir(), "pid")
	if err := os.WriteFile(pidfile, []byte(strconv.Itoa(s.Pid())), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := KillFile(pidfile); err != nil {
			t.Error(err)
		}
	})
	return pidfile
}

func credential(uid uint32) *syscall.Credential {
	if uid == 0 {
		return nil
	}
	return &syscall.Credential{Uid: uid, Gid: uid}
}

// Kill ends the server and what it has started with SIGKILL and waits for that.
func (s *Server) Kill() {
	select {
	case <-s.ended:
	default:
		_ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL)
		<-s.ended
	}
}

// Pid returns the pid of the server.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// AwaitListening waits until a server serves a client on the address. It leaves no client
// in a queue.
func AwaitListening(t testing.TB, address string) {
	t.Helper()
	eventually(t, "a server listens on "+address, func() bool {
		_, err := Ask(address, "/")
		return err == nil
	})
}

// eventually waits until ok returns true, and fails after Patience.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// RoleRestart is the argument that makes a test binary a command that restarts a server.
// The binary passes the next arguments to RestartMain.
const RoleRestart = "protecttest-restart"

// Restart returns a command that kills the server with the pid in pidfile,
// waits for pause, and then starts argv as user uid and writes its pid to
// pidfile.
func Restart(pidfile string, uid uint32, pause time.Duration, argv ...string) []string {
	return append([]string{"/proc/self/exe", RoleRestart, pidfile, strconv.Itoa(int(uid)), pause.String()}, argv...)
}

// RestartMain is the main function of that command. It returns the exit code.
func RestartMain(args []string) int {
	if err := restart(args[0], args[1], args[2], args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "restart:", err)
		return 1
	}
	return 0
}

func restart(pidfile, user, pause string, argv []string) error {
	uid, err := strconv.ParseUint(user, 10, 32)
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(pause)
	if err != nil {
		return err
	}
	if err := KillFile(pidfile); err != nil {
		return err
	}
	time.Sleep(d)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: credential(uint32(uid))}
	if err := cmd.Start(); err != nil {
		return err
	}
	return os.WriteFile(pidfile, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

// KillFile kills the process with the pid in a file, if it still exists, and its process
// group. It waits until all of these processes have ended.
func KillFile(pidfile string) error {
	b, err := os.ReadFile(pidfile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		return err
	}
	group, err := openGroup(pid)
	if err != nil {
		return err
	}
	defer func() {
		for _, fd := range group {
			unix.Close(fd)
		}
	}()
	if err := unix.Kill(-pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for _, fd := range group {
		if err := awaitExit(fd); err != nil {
			return fmt.Errorf("process group %d: %w", pid, err)
		}
	}
	return nil
}

// openGroup opens a pidfd of each process of a group.
func openGroup(group int) (fds []int, err error) {
	pids, err := proc.Host.Pids()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if g, err := unix.Getpgid(pid); err != nil || g != group {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		} else if err != nil {
			return fds, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// awaitExit waits until all threads of a process have ended, because its sockets close
// only then. The process is a zombie as soon as its first thread has ended.
func awaitExit(pidfd int) error {
	for end := time.Now().Add(Patience); time.Now().Before(end); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 1000)
		if n > 0 || err != nil && err != unix.EINTR {
			return err
		}
	}
	return errors.New("it does not end")
}
