package listenfd_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/listenfd"
)

// childEnv makes this test binary a process that a service manager has started.
const childEnv = "LISTENFD_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child greets one client on each socket that was passed.
func child() {
	sockets, skipped, err := listenfd.FromEnvironment()
	fmt.Println("error:", err, "skipped:", skipped, "left:", os.Getenv("LISTEN_FDS")+os.Getenv("LISTEN_PID")+os.Getenv("LISTEN_FDNAMES"))
	for _, s := range sockets {
		l, err := s.Listen()
		if err != nil {
			fmt.Println(err)
			continue
		}
		c, err := l.Accept()
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Fprint(c, s.Name)
		c.Close()
		l.Close()
		s.Close()
	}
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func socketOf(t *testing.T, name string, l net.Listener) *listenfd.Socket {
	t.Helper()
	s, err := listenfd.Of(name, l.(syscall.Conn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// ask connects and returns everything that the server sends.
func ask(t *testing.T, addr net.Addr) string {
	t.Helper()
	c, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestSocketOutlivesItsListener: a client that connects while no process accepts is
// served by the next listener. A listener that is closed does not affect the others.
func TestSocketOutlivesItsListener(t *testing.T) {
	dir := t.TempDir()
	for _, l := range []net.Listener{listen(t, "tcp", "127.0.0.1:0"), listen(t, "unix", filepath.Join(dir, "s"))} {
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
		s := socketOf(t, "api", l)
		l.Close()
		for range 3 {
			heard := make(chan string, 1)
			go func() { heard <- ask(t, l.Addr()) }()
			next, err := s.Listen()
			if err != nil {
				t.Fatal(err)
			}
			c, err := next.Accept()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(c, "hello")
			c.Close()
			next.Close()
			if got := <-heard; got != "hello" {
				t.Errorf("%v: %q", l.Addr(), got)
			}
		}
		s.Close()
		if c, err := net.Dial(l.Addr().Network(), l.Addr().String()); err == nil {
			c.Close()
			t.Errorf("%v listens when the last descriptor is closed", l.Addr())
		}
	}
}

// TestSocketStaysNonBlocking: a blocked Accept ends with its listener, also after the
// socket was passed to another process.
func TestSocketStaysNonBlocking(t *testing.T) {
	l := listen(t, "tcp", "127.0.0.1:0")
	s := socketOf(t, "api", l)
	ended := make(chan error, 1)
	go func() { _, err := l.Accept(); ended <- err }()
	a, b := pair(t)
	if err := listenfd.Send(a, []byte("x"), []int{s.FD()}); err != nil {
		t.Fatal(err)
	}
	_, fds, err := listenfd.Receive(b, make([]byte, 10))
	if err != nil {
		t.Fatal(err)
	}
	got, err := listenfd.Adopt(fds, []string{"api"})
	if err != nil {
		t.Fatal(err)
	}
	defer got[0].Close()
	l.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("Accept does not end with its listener")
	}
}

// pair returns the two ends of a socket that preserves message boundaries.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

func TestSendAndReceive(t *testing.T) {
	x, y := listen(t, "tcp", "127.0.0.1:0"), listen(t, "tcp", "127.0.0.1:0")
	a, b := pair(t)
	if err := listenfd.Send(a, []byte("two"), []int{socketOf(t, "x", x).FD(), socketOf(t, "y", y).FD()}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	n, fds, err := listenfd.Receive(b, buf)
	if err != nil || string(buf[:n]) != "two" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	got, err := listenfd.Adopt(fds, []string{"x", "y"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []net.Listener{x, y} {
		l, err := got[i].Listen()
		if err != nil {
			t.Fatal(err)
		}
		if l.Addr().String() != want.Addr().String() {
			t.Errorf("socket %d listens on %v, sent was %v", i, l.Addr(), want.Addr())
		}
		l.Close()
		got[i].Close()
	}

	// A descriptor that is not a listening socket is refused.
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := a.WriteMsgUnix([]byte("null"), unix.UnixRights(int(f.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	if _, fds, err = listenfd.Receive(b, buf); err != nil {
		t.Fatal(err)
	}
	if _, err := listenfd.Adopt(fds, []string{"x"}); err == nil {
		t.Error("/dev/null is taken for a listening socket")
	}
	// A message that does not fit into the buffer is an error.
	if _, err := a.Write(make([]byte, 20)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := listenfd.Receive(b, buf); err == nil {
		t.Error("a truncated message was accepted")
	}
}

// start runs the child as a service manager does. LISTEN_PID has to be the child's
// pid, which its shell sets before it executes the child.
func start(t *testing.T, names string, pid string, files ...*os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "LISTEN_PID="+pid+` exec "$0"`, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1", fmt.Sprintf("LISTEN_FDS=%d", len(files)), "LISTEN_FDNAMES="+names)
	cmd.ExtraFiles = files
	return cmd
}

func TestFromEnvironment(t *testing.T) {
	l := listen(t, "tcp", "127.0.0.1:0")
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	l.Close()

	cmd := start(t, "gateway:junk", "$$", f, null)
	out := make(chan string, 1)
	go func() {
		b, err := cmd.CombinedOutput()
		out <- fmt.Sprint(string(b), err)
	}()
	if got := ask(t, l.Addr()); got != "gateway" {
		t.Errorf("the child said %q", got)
	}
	if got := <-out; got != "error: <nil> skipped: [junk] left: \n<nil>" {
		t.Errorf("the child printed %q", got)
	}
	for name, c := range map[string]struct{ pid, count, want string }{
		"another process's": {"1", "1", "error: <nil> skipped: [] left: \n"},
		"not a number":      {"$$", "many", "error: LISTEN_FDS is \"many\""},
		"too many":          {"$$", "1000000", "error: LISTEN_FDS is \"1000000\""},
	} {
		cmd := start(t, "gateway", c.pid, f)
		cmd.Env = append(cmd.Env, "LISTEN_FDS="+c.count)
		if b, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(b), c.want) {
			t.Errorf("%s: %v: %q, want %q", name, err, b, c.want)
		}
	}
}

func TestServiceManager(t *testing.T) {
	l := listen(t, "tcp", "127.0.0.1:0")
	s := socketOf(t, "gateway", l)
	t.Setenv("NOTIFY_SOCKET", "")
	if listenfd.Managed() || listenfd.Store(s) != nil || listenfd.HandOver(1, time.Minute) != nil {
		t.Error("without a service manager Managed is true")
	}
	path := filepath.Join(t.TempDir(), "notify")
	t.Setenv("NOTIFY_SOCKET", path)
	if err := listenfd.Store(s); err == nil {
		t.Error("a socket was left with a missing manager")
	}
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	if err := listenfd.Store(s); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	n, fds, err := listenfd.Receive(manager, buf)
	if err != nil || string(buf[:n]) != "FDSTORE=1\nFDNAME=gateway\nFDPOLL=0" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	stored, err := listenfd.Adopt(fds, []string{"gateway"})
	if err != nil {
		t.Fatal(err)
	}
	stored[0].Close()
	if err := listenfd.Unstore("gateway"); err != nil {
		t.Fatal(err)
	}
	if n, _, err = listenfd.Receive(manager, buf); err != nil || string(buf[:n]) != "FDSTOREREMOVE=1\nFDNAME=gateway" {
		t.Errorf("%q, %v", buf[:n], err)
	}

	// The manager has read the message when HandOver returns. HandOver does not wait
	// endlessly for a manager that does not read.
	if err := listenfd.HandOver(42, time.Millisecond); err == nil {
		t.Error("HandOver succeeded with a manager that does not read")
	}
	told := make(chan error, 1)
	go func() { told <- listenfd.HandOver(42, time.Minute) }()
	for _, want := range []string{"MAINPID=42", "BARRIER=1", "MAINPID=42", "BARRIER=1"} {
		n, fds, err := listenfd.Receive(manager, buf)
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("%q, %v, want %s", buf[:n], err, want)
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
}
