package preempt

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"holdfast/test/poll"
)

// bus is a private dbus-daemon.
type bus struct {
	address string
	config  string
	cmd     *exec.Cmd
}

func startBus(t *testing.T) *bus {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a dbus-daemon has to be installed")
	}
	dir := t.TempDir()
	b := &bus{address: "unix:path=" + filepath.Join(dir, "bus"), config: filepath.Join(dir, "bus.conf")}
	// The policy of Debian's system bus, with calls and names for all users.
	text := fmt.Sprintf(`<busconfig><listen>%s</listen><auth>EXTERNAL</auth><policy context="default">
<allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/>
<allow send_requested_reply="true" send_type="method_return"/><allow send_requested_reply="true" send_type="error"/>
<allow receive_type="method_call"/><allow receive_type="method_return"/><allow receive_type="error"/><allow receive_type="signal"/>
</policy></busconfig>`, b.address)
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	t.Cleanup(b.stop)
	return b
}

// start returns when the bus accepts connections.
func (b *bus) start(t *testing.T) {
	t.Helper()
	b.cmd = exec.Command("dbus-daemon", "--config-file="+b.config, "--nofork", "--nopidfile", "--nosyslog", "--print-address")
	b.cmd.Stderr = os.Stderr
	out, err := b.cmd.StdoutPipe()
	if err == nil {
		err = b.cmd.Start()
	}
	if err != nil {
		t.Fatalf("%v (Debian's package dbus has it)", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "unix:") {
		t.Fatalf("dbus-daemon says %q, %v", line, err)
	}
}

func (b *bus) stop() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
	_ = os.Remove(strings.TrimPrefix(b.address, "unix:path="))
}

func (b *bus) connect(t *testing.T) *dbus.Conn {
	t.Helper()
	conn, err := dbus.Connect(b.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// login1Server implements logind's part of a shutdown. An inhibitor is the write end of
// a pipe; it is released when the read end is at EOF.
type login1Server struct {
	conn *dbus.Conn
	hang chan struct{} // closed at the end; Inhibit waits for it if hangs is true

	mu        sync.Mutex
	delay     any // InhibitDelayMaxUSec
	preparing bool
	hangs     bool
	client    string // the last caller
	locks     []*lock
}

// lock is an inhibitor that was given out.
type lock struct{ read, write *os.File }

func startLogin1(t *testing.T, b *bus) *login1Server {
	t.Helper()
	s := &login1Server{conn: b.connect(t), delay: uint64(30_000_000), hang: make(chan struct{})}
	t.Cleanup(func() {
		close(s.hang)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.locks {
			_ = l.read.Close()
			_ = l.write.Close()
		}
	})
	if err := s.conn.Export(s, login1Path, "org.freedesktop.login1.Manager"); err != nil {
		t.Fatal(err)
	}
	if err := s.conn.Export(properties{s}, login1Path, "org.freedesktop.DBus.Properties"); err != nil {
		t.Fatal(err)
	}
	if r, err := s.conn.RequestName("org.freedesktop.login1", dbus.NameFlagDoNotQueue); err != nil || r != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(r, err)
	}
	return s
}

// Inhibit is the method of that name.
func (s *login1Server) Inhibit(sender dbus.Sender, what, program, why, mode string) (dbus.UnixFD, *dbus.Error) {
	s.mu.Lock()
	hangs := s.hangs
	s.mu.Unlock()
	if hangs {
		<-s.hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client = string(sender)
	switch {
	case what != "shutdown" || mode != "delay" || program == "" || why == "":
		return 0, dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{what, mode})
	case s.preparing: // as logind's method_inhibit does
		return 0, dbus.NewError("System.Error.EALREADY", []any{"The operation inhibition has been requested for is already running"})
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	s.locks = append(s.locks, &lock{r, w})
	return dbus.UnixFD(w.Fd()), nil
}

// properties are those of the manager.
type properties struct{ *login1Server }

// Get is the method of that name.
func (p properties) Get(iface, name string) (dbus.Variant, *dbus.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch iface + "." + name {
	case "org.freedesktop.login1.Manager.InhibitDelayMaxUSec":
		return dbus.MakeVariant(p.delay), nil
	case "org.freedesktop.login1.Manager.PreparingForShutdown":
		return dbus.MakeVariant(p.preparing), nil
	}
	return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", nil)
}

// prepare sends PrepareForShutdown.
func (s *login1Server) prepare(t *testing.T, going bool) {
	t.Helper()
	s.set(func() { s.preparing = going })
	if err := s.conn.Emit(login1Path, "org.freedesktop.login1.Manager.PrepareForShutdown", going); err != nil {
		t.Fatal(err)
	}
}

// set changes the answers of the server.
func (s *login1Server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// taken waits until n inhibitors were given out in all, and returns the last.
func (s *login1Server) taken(t *testing.T, n int) *lock {
	t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.locks)
	}
	poll.Until(t, fmt.Sprintf("%d inhibitors taken", n), func() bool { return count() >= n })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.locks) != n {
		t.Fatalf("%d inhibitors taken, want %d", len(s.locks), n)
	}
	return s.locks[n-1]
}

// held reports whether another process holds the inhibitor. It may be called when the
// other side has received the inhibitor.
func (l *lock) held(t *testing.T) bool {
	t.Helper()
	_ = l.write.Close() // the server's own copy
	if err := l.read.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := l.read.Read(make([]byte, 1))
	return err != io.EOF
}

// released waits until no process holds the inhibitor.
func (l *lock) released(t *testing.T) {
	t.Helper()
	poll.Until(t, "let go", func() bool { return !l.held(t) })
}
