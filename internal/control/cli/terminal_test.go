package cli_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/api/apitest"
)

// patience is the time limit of a wait.
const patience = 20 * time.Second

// console is the command holdfast on a terminal of its own.
type console struct {
	t   *testing.T
	pty *os.File // the test's end
	tty *os.File // the command's end
	cmd *exec.Cmd
	out *bufio.Reader
}

// onTerminal starts holdfast on a terminal of 80 by 24.
func onTerminal(t *testing.T, b *apitest.Backend, args ...string) *console {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	if err := startAgent(b, socket, t.Cleanup); err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ours.Close()
		theirs.Close()
	})
	if err := pty.Setsize(ours, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	if err := ours.SetReadDeadline(time.Now().Add(patience)); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		t.Fatal(err)
	}
	cmd := exec.Command("holdfast", args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+socket, "GORACE="+raceEnv)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	// The terminal is the controlling one, so Ctrl-C and a new size become signals.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	c := &console{t: t, pty: ours, tty: theirs, cmd: cmd, out: bufio.NewReader(ours)}
	return c
}

func (c *console) start() {
	c.t.Helper()
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	kill := time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill() })
	c.t.Cleanup(func() { kill.Stop() })
}

// until reads until want appears, and returns all output so far.
func (c *console) until(want string) string {
	c.t.Helper()
	var got bytes.Buffer
	for !bytes.Contains(got.Bytes(), []byte(want)) {
		b, err := c.out.ReadByte()
		if err != nil {
			c.t.Fatalf("reading up to %q: %v; there was %q", want, err, got.String())
		}
		got.WriteByte(b)
	}
	return got.String()
}

func (c *console) press(keys string) {
	c.t.Helper()
	if _, err := io.WriteString(c.pty, keys); err != nil {
		c.t.Fatal(err)
	}
}

// end waits for the command and returns its exit code.
func (c *console) end() int {
	c.t.Helper()
	var exit *exec.ExitError
	if err := c.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	return c.cmd.ProcessState.ExitCode()
}

// mode returns the input mode of the terminal.
func (c *console) mode() unix.Termios {
	c.t.Helper()
	m, err := unix.IoctlGetTermios(int(c.tty.Fd()), unix.TCGETS)
	if err != nil {
		c.t.Fatal(err)
	}
	return *m
}

func with(t *testing.T, keys ...holdfast.SessionKey) *apitest.Backend {
	t.Helper()
	b := &apitest.Backend{}
	for _, k := range keys {
		if _, err := b.StartSession(t.Context(), k, ""); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// On a terminal the command of an exec gets a terminal without a flag.
func TestExecTakesTheTerminal(t *testing.T) {
	c := onTerminal(t, with(t, "alice"), "session", "exec", "alice", "--", "tty")
	c.start()
	c.until("tty=true stdin=true")
	if code := c.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Input goes to the command key by key, also Ctrl-C, and the terminal is restored.
func TestExecIsRaw(t *testing.T) {
	c := onTerminal(t, with(t, "alice"), "session", "exec", "alice", "--", "read")
	before := c.mode()
	c.start()
	// Before the terminal is raw, Ctrl-C would be a signal.
	for deadline := time.Now().Add(patience); c.mode().Lflag&unix.ISIG != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the terminal does not become raw")
		}
	}
	c.press("a\x03b\r")
	c.until(`got "a\x03b\r" <nil>`)
	if code := c.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if after := c.mode(); after != before {
		t.Errorf("the terminal was left as %+v, it was %+v", after, before)
	}
}

func TestExecPassesExitCodeOnTerminal(t *testing.T) {
	c := onTerminal(t, with(t, "alice"), "session", "exec", "alice", "--", "exit", "42")
	before := c.mode()
	c.start()
	if code := c.end(); code != 42 {
		t.Errorf("exit code %d", code)
	}
	if c.mode() != before {
		t.Error("the terminal was not restored")
	}
}

func TestExecFollowsTheSize(t *testing.T) {
	c := onTerminal(t, with(t, "alice"), "session", "exec", "alice", "--", "size")
	c.start()
	c.until("80x24\n")
	if err := pty.Setsize(c.pty, &pty.Winsize{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	c.until("132x50\n")
	if code := c.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Long work shows the elapsed time, on one line that is erased at the end.
func TestProgressOnTerminal(t *testing.T) {
	b := with(t)
	b.Gate = make(chan struct{})
	c := onTerminal(t, b, "session", "start", "alice")
	c.start()
	c.until("\r\x1b[Kstarting alice… ")
	close(b.Gate)
	rest := c.until("booted in 400ms)\r\n")
	if i := strings.LastIndex(rest, "\r\x1b[K"); i < 0 || !strings.HasPrefix(rest[i:], "\r\x1b[Kalice is ready at ") {
		t.Errorf("the line of progress was not erased: %q", rest)
	}
	if code := c.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestCtrlC(t *testing.T) {
	c := onTerminal(t, with(t, "alice"), "session", "logs", "alice", "-f")
	c.start()
	c.until("line 5\r\n")
	c.press("\x03")
	c.until("error: interrupted\r\n")
	if code := c.end(); code != 130 {
		t.Errorf("exit code %d", code)
	}
}

// A replacement shows its progress on a terminal as a table, which is erased when the
// result is printed.
func TestReplaceOnTerminal(t *testing.T) {
	b := with(t, "alice", "bob")
	b.Gate = make(chan struct{})
	c := onTerminal(t, b, "session", "replace", "alice", "bob")
	c.start()
	c.until("INSTANCE  FROM  TO")
	c.until("alice     n1    -")
	c.until("0 done, 1 under way")
	c.until("\x1b[3A\rINSTANCE") // three lines up, and redrawn
	b.Gate <- struct{}{}
	c.until("1.30s")
	c.until("1 done, 1 under way")
	close(b.Gate)
	rest := c.until("2 sessions replaced in 2.70s\r\n")
	if i := strings.LastIndex(rest, "\r\x1b[J"); i < 0 || !strings.HasPrefix(rest[i:], "\r\x1b[JINSTANCE") || !strings.Contains(rest[i:], "bob       n1    n1  840ms") {
		t.Errorf("the table was not erased before the result: %q", rest)
	}
	if code := c.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// An interrupted replacement says what continues, and prints what was done.
func TestReplaceIsInterrupted(t *testing.T) {
	b := with(t, "alice", "bob")
	b.Gate = make(chan struct{})
	c := onTerminal(t, b, "session", "replace", "--all")
	c.start()
	b.Gate <- struct{}{} // alice
	c.until("1 done, 1 under way")
	c.press("\x03")
	rest := c.until("replacements` will show them\r\n")
	if !strings.Contains(rest, "alice     n1    n1  740ms") || !strings.Contains(rest, "error: interrupted\r\n") {
		t.Errorf("%q", rest)
	}
	if code := c.end(); code != 130 {
		t.Errorf("exit code %d", code)
	}
}
