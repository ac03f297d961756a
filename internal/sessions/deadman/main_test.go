package deadman

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/kill/killtest"
	"holdfast/test/poll"
)

// TestMain also runs, depending on its arguments, a deadman and a stand-in for an
// agent. Both have to be processes that can die.
func TestMain(m *testing.M) {
	switch { // os.Exit takes a second under -race
	case len(os.Args) == 3 && os.Args[1] == "deadman":
		syscall.Exit(Main(os.Args[2], os.Stderr))
	case len(os.Args) == 3 && os.Args[1] == "other-version":
		syscall.Exit(live(os.Args[2], os.Stderr, protocol+1))
	case len(os.Args) == 4 && os.Args[1] == "stranger":
		syscall.Exit(stranger(os.Args[2], os.Args[3]))
	case len(os.Args) == 3 && os.Args[1] == "agent":
		syscall.Exit(standIn(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// testNode is the node of most agents in these tests.
const testNode = holdfast.NodeID("n1")

func argv() []string { return []string{"/proc/self/exe", "deadman"} }

// order is a line of a stand-in's input.
type order struct {
	Expect string           // id
	Hold   container        //
	Extend boottime.Instant //
	Starve bool             // use up all descriptors
}

// standIn is an agent's process in the view of a deadman. It carries out the lines of
// its input and answers each with a line.
func standIn(dir string) int {
	c, err := Start(argv(), dir, testNode, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() { _ = c.Run(context.Background()) }()
	fmt.Println("up", c.Pid())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var o order
		err := json.Unmarshal(in.Bytes(), &o)
		switch {
		case err != nil:
		case o.Expect != "":
			err = c.Expect(o.Expect)
		case o.Hold.ID != "":
			var t *kill.Target
			if t, err = kill.Open(o.Hold.ID, o.Hold.Name, o.Hold.Pid); err == nil {
				err = c.Hold(t)
				t.Close()
			}
		case o.Starve:
			err = starve()
		default:
			c.Extend(o.Extend)
		}
		fmt.Println("did", err)
	}
	return 0
}

// starve opens descriptors until there are no more.
func starve() error {
	limit := unix.Rlimit{Cur: 64, Max: 64}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for range 100 {
		if _, err := unix.Dup(0); err == unix.EMFILE {
			return nil
		}
	}
	return errors.New("there are still descriptors")
}

// agent is a stand-in's process.
type agent struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	deadman int // pid
}

func newAgent(t *testing.T, dir string) *agent {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "agent", dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(a.kill)
	if _, err := fmt.Fscanf(a.out, "up %d\n", &a.deadman); err != nil {
		t.Fatalf("the stand-in does not start: %v", err)
	}
	return a
}

// runDir is a run directory. The test ends with no deadman left in it. That check
// comes after all clients are closed, because a client would start another deadman.
func runDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { poll.Until(t, "no deadman is left", func() bool { return endAll(t, dir) }) })
	return dir
}

// endAll kills the deadmen of a directory, and reports whether there were none.
func endAll(t *testing.T, dir string) (none bool) {
	t.Helper()
	pids, err := proc.Host.Pids()
	if err != nil {
		t.Fatal(err)
	}
	none = true
	for _, pid := range pids {
		args, err := proc.Host.Cmdline(pid)
		if err == nil && len(args) == 3 && strings.HasPrefix(args[2], dir) && args[1] != "agent" {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			none = false
		}
	}
	return none
}

func (a *agent) do(o order) error {
	a.t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := fmt.Fprintln(a.in, string(b)); err != nil {
		a.t.Fatal(err)
	}
	line, err := a.out.ReadString('\n')
	if err != nil {
		a.t.Fatal(err)
	}
	if line = strings.TrimSpace(line); line != "did <nil>" {
		return errors.New(strings.TrimPrefix(line, "did "))
	}
	return nil
}

func (a *agent) must(o order) {
	a.t.Helper()
	if err := a.do(o); err != nil {
		a.t.Fatal(err)
	}
}

// kill ends the stand-in like a crash.
func (a *agent) kill() {
	_ = a.cmd.Process.Kill() // it may have ended
	_ = a.cmd.Wait()         // killed
}

// box is a container: a process in a control group that carries its id.
type box struct {
	container
	init *pidfd.Process // nil if it was killed before it could be opened
	died chan struct{}  // closed when the test's own process has reaped it
	at   boottime.Instant
}

var ids struct {
	sync.Mutex
	n int
}

// newID returns a container id that is unique among tests and runs.
func newID() string {
	ids.Lock()
	defer ids.Unlock()
	ids.n++
	return fmt.Sprintf("%016x%016x%032x", os.Getpid(), time.Now().UnixNano(), ids.n)
}

// newBox starts a container. A deadman after its deadline may kill it before newBox returns.
func newBox(t *testing.T, id string) *box {
	t.Helper()
	cmd, err := killtest.Start(id)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{container: container{ID: id, Name: "box-" + id[60:], Pid: cmd.Process.Pid}, died: make(chan struct{})}
	p, err := pidfd.Open(cmd.Process.Pid)
	if err == nil {
		b.init, b.container.Start = p, p.Start()
	} else if !errors.Is(err, pidfd.ErrGone) {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // killed
		b.at = boottime.Now()
		close(b.died)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead
		<-b.died
		if b.init != nil {
			p.Close()
		}
		if err := killtest.Remove(id); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *box) alive() bool { return b.init != nil && !b.init.Exited() }

// diedNotBefore waits for a container's death and fails if it came before the
// deadline, or too late.
func (b *box) diedNotBefore(t *testing.T, deadline boottime.Instant) {
	t.Helper()
	select {
	case <-b.died:
	case <-time.After(time.Minute):
		t.Fatal("the container lives")
	}
	if b.at < deadline {
		t.Errorf("it was dead %v before the deadline", time.Duration(deadline-b.at))
	}
	t.Logf("dead %v after the deadline", time.Duration(b.at-deadline))
}

// newClient is a client in the test's own process, with its Run.
func newClient(t *testing.T, dir string) *Client {
	t.Helper()
	c := start(t, argv(), dir, t.Output())
	run(t, c)
	return c
}

// start makes a client without its Run.
func start(t *testing.T, argv []string, dir string, log io.Writer) *Client {
	t.Helper()
	c, err := Start(argv, dir, testNode, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func hold(t *testing.T, c *Client, b *box) {
	t.Helper()
	target, err := kill.Open(b.ID, b.Name, b.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	if err := c.Hold(target); err != nil {
		t.Fatal(err)
	}
}

// run runs a client until the test ends.
func run(t *testing.T, c *Client) (ended <-chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	done, told := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(done)
		told <- c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		c.Close()
	})
	return told
}

func soon(d time.Duration) boottime.Instant { return boottime.Now().Add(d) }

func waitUntil(i boottime.Instant) { time.Sleep(i.Until()) }

// stranger connects as another user, and returns 0 if the deadman closes the
// connection.
func stranger(dir, name string) int {
	fail := func(what string, err error) int {
		fmt.Fprintln(os.Stderr, what, err)
		return 1
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		return fail("socket", err)
	}
	if err := os.Chdir(dir); err != nil {
		return fail("chdir", err)
	}
	if err := syscall.Setuid(65534); err != nil {
		return fail("setuid", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return fail("connect", err)
	}
	_ = unix.Sendto(fd, []byte(`{"op":"hello","seq":1}`), unix.MSG_NOSIGNAL, nil) // it may be closed already
	buf := make([]byte, 1000)
	n, err := unix.Read(fd, buf)
	if n > 0 {
		return fail("the deadman has answered another user", errors.New(string(buf[:n])))
	}
	if err != nil && err != unix.ECONNRESET {
		return fail("read", err)
	}
	return 0
}
