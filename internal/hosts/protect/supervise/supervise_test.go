package supervise_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect/history"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/hosts/protect/supervise"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// Roles of the test binary.
const (
	roleLate      = "late"      // a server that crashes until a moment
	roleReopens   = "reopens"   // a server that listens again at SIGHUP
	roleSupervise = "supervise" // a supervisor
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		args := os.Args[2:]
		switch os.Args[1] {
		case protecttest.RoleServer:
			syscall.Exit(protecttest.ServerMain(args))
		case roleLate:
			syscall.Exit(lateMain(args))
		case roleReopens:
			syscall.Exit(reopensMain(args[0]))
		case roleSupervise:
			syscall.Exit(superviseMain(args))
		}
	}
	if err := os.Setenv("GORACE", "atexit_sleep_ms=10"); err != nil {
		panic(err)
	}
	os.Exit(labtest.Main(m))
}

// lateMain serves at its first start and, after a crash, again from the moment in the file.
func lateMain(args []string) int {
	at, file := args[0], args[1]
	b, err := os.ReadFile(file)
	if err == nil {
		until, err := strconv.ParseInt(string(b), 10, 64)
		if err != nil || time.Now().UnixNano() < until {
			return 3
		}
	}
	return protecttest.ServerMain([]string{at, "plain"})
}

// reopensMain closes its listener at SIGHUP, and opens it again. It does not set SO_REUSEPORT,
// and ends if it cannot listen. Its answers have the number of its listener and the pid. At
// SIGTERM it ends with exit code 0.
func reopensMain(at string) int {
	again := make(chan os.Signal, 1)
	signal.Notify(again, unix.SIGHUP, unix.SIGTERM)
	var answers sync.WaitGroup
	var closed atomic.Int64
	for n := 0; ; n++ {
		l, err := net.Listen("tcp", at)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 4
		}
		go func() { // until l is closed
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				answers.Go(func() {
					defer c.Close()
					if q, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
						body := fmt.Sprintln(n, os.Getpid())
						if q.URL.Path == "/closed" {
							body = fmt.Sprintln(closed.Load())
						}
						fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
					}
				})
			}
		}()
		sig := <-again
		if err := l.Close(); err != nil {
			return 5
		}
		closed.Store(time.Now().UnixNano())
		if sig == unix.SIGTERM {
			answers.Wait()
		}
		if sig == unix.SIGTERM {
			return 0
		}
	}
}

func superviseMain(argv []string) int {
	o := options(argv, "", nil)
	o.LockDir, o.Command = argv[0], argv[1:]
	code, err := supervise.Run(context.Background(), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

func options(argv []string, dir string, signals chan os.Signal) supervise.Options {
	return supervise.Options{
		Command: argv, Stdout: os.Stderr, Stderr: os.Stderr, GiveUp: protecttest.Patience, Backoff: 50 * time.Millisecond,
		Signals: signals, LockDir: dir, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// result is how a Run ended.
type result struct {
	code int
	err  error
}

// run is a Run in progress.
type run struct {
	t       *testing.T
	address string
	dir     string
	signals chan os.Signal
	ended   chan result
}

// begin starts Run, which ends with the test, and returns when its server answers.
func begin(t *testing.T, address string, change func(*supervise.Options), argv ...string) *run {
	t.Helper()
	r := &run{t, address, t.TempDir(), make(chan os.Signal, 1), make(chan result, 1)}
	o := options(argv, r.dir, r.signals)
	if change != nil {
		change(&o)
	}
	ready := make(chan struct{})
	o.Ready = func() { close(ready) }
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		code, err := supervise.Run(ctx, o)
		r.ended <- result{code, err}
		close(r.ended)
	}()
	t.Cleanup(func() { cancel(); <-r.ended })
	select {
	case <-ready:
	case res := <-r.ended:
		t.Fatalf("it has ended: %+v", res)
	}
	return r
}

// next returns the pid of a server that is not the one before. A client of a server that is
// being killed may be cut off, but not refused.
func (r *run) next(before int) int {
	r.t.Helper()
	for end := time.Now().Add(protecttest.Patience); time.Now().Before(end); {
		answer, err := protecttest.Ask(r.address, "/")
		if errors.Is(err, unix.ECONNREFUSED) {
			r.t.Fatal(err)
		}
		_, text, _ := strings.Cut(strings.TrimSpace(answer), " ")
		if pid, err := strconv.Atoi(text); err == nil && pid != before {
			return pid
		}
	}
	r.t.Fatal("no other server answers")
	return 0
}

// calm waits until the server has answered those that waited for it: they came before these
// clients, and a queue is in order.
func (r *run) calm() {
	r.t.Helper()
	for range 30 {
		if _, err := protecttest.Ask(r.address, "/"); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *run) end() result {
	r.t.Helper()
	select {
	case res := <-r.ended:
		return res
	case <-time.After(protecttest.Patience):
		r.t.Fatal("it does not end")
		return result{}
	}
}

// refused counts the clients that were refused, and reports the others that failed. At most
// allowed may have been cut off, because a killed server had accepted them.
func refused(t *testing.T, load *protecttest.Load, allowed int) (n int) {
	t.Helper()
	total, errs, longest := load.Stop()
	for _, err := range errs {
		if errors.Is(err, unix.ECONNREFUSED) {
			n++
		}
	}
	t.Logf("%d clients: %d refused, %d cut off, the slowest took %v", total, n, len(errs)-n, longest)
	if len(errs)-n > allowed {
		t.Errorf("%d clients were cut off, a server had accepted at most %d: %v", len(errs)-n, allowed, errs[0])
	}
	return n
}

func root(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: holding connections needs root")
	}
}

func free(t *testing.T) string { return protecttest.FreePort(t) }

// A server that is killed again and again refuses no client, for a server without
// SO_REUSEPORT and as another user.
func TestCrashes(t *testing.T) {
	root(t)
	address := free(t)
	r := begin(t, address, func(o *supervise.Options) { o.User = &supervise.User{UID: 65534, GID: 65534} }, protecttest.GoServer(address, "plain")...)
	load := protecttest.StartLoad(t, address, 2*time.Millisecond, nil)
	const kills = 5
	pid := r.next(0)
	for range kills {
		r.calm()
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		pid = r.next(pid)
	}
	if n := refused(t, load, 3*kills); n > 0 {
		t.Errorf("%d clients were refused", n)
	}
	h, err := history.Read(r.dir)
	if err != nil || len(h.Holds) != kills {
		t.Errorf("the history has %d outages, %v", len(h.Holds), err)
	}
	// SIGTERM ends both, with the server's exit code, and a client is refused then.
	r.signals <- unix.SIGTERM
	if res := r.end(); res.code != 128+15 || res.err != nil {
		t.Errorf("ended: %+v", res)
	}
	if _, err := protecttest.Ask(address, "/"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after the end a client gets %v", err)
	}
	if locks, _ := filepath.Glob(filepath.Join(r.dir, "*-*.lock")); len(locks) > 0 {
		t.Errorf("it has left %v", locks)
	}
}

// A server that closes its listener at a signal and opens it again, as sshd does, refuses no client.
// It answers what it has accepted. The kernel cuts off only clients that wait in its queue when it
// closes it.
func TestListensAgain(t *testing.T) {
	root(t)
	address := free(t)
	r := begin(t, address, nil, "/proc/self/exe", roleReopens, address)
	pid := r.next(0)
	load := protecttest.StartLoad(t, address, 2*time.Millisecond, nil)
	type closing struct{ told, closed time.Time }
	var closings []closing
	for n := 1; n <= 3; n++ {
		r.calm()
		told := time.Now()
		r.signals <- unix.SIGHUP
		poll.Until(t, "the server listens again", func() bool {
			answer, err := protecttest.Ask(address, "/")
			return err == nil && strings.TrimSpace(answer) == fmt.Sprint(n, " ", pid)
		})
		answer, err := protecttest.Ask(address, "/closed")
		at, parse := strconv.ParseInt(strings.TrimSpace(answer), 10, 64)
		if err != nil || parse != nil {
			t.Fatal(err, parse)
		}
		closings = append(closings, closing{told, time.Unix(0, at)})
	}
	total, failed, longest := load.Stop()
	t.Logf("%d clients: %d cut off, the slowest took %v", total, len(failed), longest)
	for _, err := range failed {
		f := err.(protecttest.Failure)
		if !slices.ContainsFunc(closings, func(c closing) bool { return f.Begun.Before(c.closed) && f.Ended.After(c.told) }) {
			t.Errorf("a client was cut off from %v to %v, and the listener closed at %v: %v", f.Begun, f.Ended, closings, f)
		}
		if errors.Is(f, unix.ECONNREFUSED) {
			t.Error("a client was refused:", f)
		}
	}
}

// A server that crashes at each start for two seconds refuses no client, and one that never
// comes back refuses them after the limit, not before.
func TestCrashLoop(t *testing.T) {
	root(t)
	address, file := free(t), filepath.Join(t.TempDir(), "until")
	r := begin(t, address, func(o *supervise.Options) { o.GiveUp = 5 * time.Second }, "/proc/self/exe", roleLate, address, file)
	pid := 0
	crash := func(back time.Time) time.Time {
		if err := os.WriteFile(file, fmt.Append(nil, back.UnixNano()), 0o600); err != nil {
			t.Fatal(err)
		}
		pid = r.next(0)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return time.Now()
	}
	load := protecttest.StartLoad(t, address, 10*time.Millisecond, nil)
	crash(time.Now().Add(2 * time.Second))
	r.next(pid)
	if n := refused(t, load, 3); n > 0 {
		t.Errorf("%d clients were refused in a crash loop of 2 s", n)
	}
	begun := crash(time.Now().Add(time.Hour))
	_, err := protecttest.Ask(address, "/")
	if held := time.Since(begun); err == nil || held < 5*time.Second {
		t.Errorf("after %v a client of a server that does not come back gets %v", held, err)
	}
	if res := r.end(); !errors.Is(res.err, supervise.ErrGaveUp) || res.code != 3 {
		t.Errorf("it ended with %+v", res)
	}
	if _, err := protecttest.Ask(address, "/"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after the end a client gets %v", err)
	}
}

// A service manager sends SIGTERM to the server and to the supervisor. The server ends before
// the supervisor has read the signal.
func TestServerEndsFirst(t *testing.T) {
	root(t)
	for _, restarts := range []bool{true, false} {
		address := free(t)
		r := begin(t, address, func(o *supervise.Options) {
			o.Restarts = func(context.Context) bool { return restarts }
		}, "/proc/self/exe", roleReopens, address)
		if err := unix.Kill(r.next(0), unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if res := r.end(); res.code != 0 || res.err != nil {
			t.Errorf("ended: %+v", res)
		}
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		if refused := errors.Is(err, unix.ECONNREFUSED); refused == restarts {
			t.Errorf("the service is started again: %v; a client gets %v", restarts, err)
		}
	}
}

// A killed supervisor leaves the server to its clients.
func TestSupervisorIsKilled(t *testing.T) {
	root(t)
	address, dir := free(t), t.TempDir()
	cmd := exec.Command("/proc/self/exe", append([]string{roleSupervise, dir}, protecttest.GoServer(address, "plain")...)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended
	protecttest.AwaitListening(t, address)
	r := &run{t: t, address: address}
	first := r.next(0)
	if err := unix.Kill(first, unix.SIGKILL); err != nil { // there is a spare, if it comes back
		t.Fatal(err)
	}
	protecttest.AwaitListening(t, address)
	second := r.next(first)
	t.Cleanup(func() { _ = unix.Kill(second, unix.SIGKILL) })
	load := protecttest.StartLoad(t, address, 2*time.Millisecond, nil)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	r.calm()
	if n := refused(t, load, 0); n > 0 {
		t.Errorf("%d clients were refused", n)
	}
	if now := r.next(0); now != second {
		t.Errorf("the server was %d and is %d", second, now)
	}
}
