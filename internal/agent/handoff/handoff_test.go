package handoff_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/platform/linux/listenfd"
)

// actEnv makes this test binary act as a next agent; its value says what the agent does.
const actEnv = "HANDOFF_TEST_ACT"

func TestMain(m *testing.M) {
	if act := os.Getenv(actEnv); act != "" {
		os.Exit(perform(act))
	}
	goleak.VerifyTestMain(m)
}

var home = handoff.Home{Node: "n1", DataDir: "/data", RunDir: "/run", Socket: "/run/s"}

// perform acts as a next agent and returns its exit code.
func perform(act string) int {
	switch act {
	case "exit":
		return 3
	case "hang":
		time.Sleep(time.Hour)
	}
	t, err := handoff.Inherit()
	if err != nil || t == nil || os.Getenv("HOLDFAST_PREDECESSOR") != "" {
		fmt.Fprintln(os.Stderr, "inherit:", t, err)
		return 1
	}
	defer t.Close()
	mine := home
	switch act {
	case "bad-config":
		t.Fail(holdfast.WithHint(errors.New("line 3: what is this?"), "read the manual"))
		t.Fail(errors.New("and one more"))
		return 2
	case "moved":
		mine.DataDir = "/elsewhere"
	}
	conns := handoff.NewConnections(slog.New(slog.DiscardHandler))
	sockets, note, err := t.Take(context.Background(), "v2", mine, conns)
	if err != nil {
		fmt.Fprintln(os.Stderr, "take:", err)
		return 1
	}
	switch act {
	case "crash":
		return 4
	case "no-engine":
		t.Fail(errors.New("no engine"))
		return 4
	}
	t.Say(handoff.Held)
	l, err := sockets[0].Listen()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	t.Say(handoff.Up)
	if act == "connections" {
		return answerConnections(conns)
	}
	c, err := l.Accept()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-t.Over()
	fmt.Fprintf(c, "%s %s %v", sockets[0].Name, note, t.Orphaned())
	c.Close()
	return 0
}

func start(t *testing.T, act string, log *bytes.Buffer) (*handoff.Next, error) {
	t.Helper()
	t.Setenv(actEnv, act)
	n, err := handoff.Start(t.Context(), handoff.Options{
		Argv: []string{os.Args[0]}, Home: home, Stdout: log, Stderr: log, Limit: time.Minute,
	})
	if n != nil {
		t.Cleanup(n.Kill)
	}
	return n, err
}

// socket returns a listening TCP socket.
func socket(t *testing.T) (*listenfd.Socket, net.Addr) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := listenfd.Of("gateway", l.(syscall.Conn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	l.Close()
	return s, l.Addr()
}

func await(t *testing.T, n *handoff.Next, want handoff.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if e, err := n.Await(ctx); e != want || err != nil {
		t.Errorf("%q, %v, want %q", e, err, want)
	}
}

func TestTakingOver(t *testing.T) {
	var log bytes.Buffer
	n, err := start(t, "serve", &log)
	if err != nil {
		t.Fatal(err, &log)
	}
	if h := n.Hello(); h.Version != "v2" || h.Home != home {
		t.Errorf("%+v", h)
	}
	s, addr := socket(t)
	// This client connects while no agent serves.
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := n.Go([]*listenfd.Socket{s}, []byte(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}
	await(t, n, handoff.Held)
	await(t, n, handoff.Up)
	if err := n.Over(); err != nil {
		t.Error(err)
	}
	b, err := io.ReadAll(c)
	if want := `gateway {"n":1} false`; string(b) != want {
		t.Errorf("%q, %v, want %q", b, err, want)
	}
	<-n.Ended()
	if n.ExitCode() != 0 {
		t.Errorf("exit code %d\n%s", n.ExitCode(), &log)
	}
}

func TestNextThatCannotStart(t *testing.T) {
	for act, want := range map[string][2]string{
		"exit":       {"ended before it sent its hello: exit status 3", "holdfast version"},
		"bad-config": {"line 3: what is this?", "read the manual"},
		"moved":      {`data_dir is "/elsewhere" with the next agent`, "stop --keep"},
	} {
		var log bytes.Buffer
		n, err := start(t, act, &log)
		if err == nil {
			n.Kill()
			t.Errorf("%s: it started\n%s", act, &log)
			continue
		}
		if !strings.Contains(err.Error(), want[0]) || !strings.Contains(holdfast.HintOf(err), want[1]) {
			t.Errorf("%s: %v, hint %q", act, err, holdfast.HintOf(err))
		}
	}
	if _, err := handoff.Start(t.Context(), handoff.Options{Argv: []string{"/no/such/program"}}); err == nil {
		t.Error("a missing program was started")
	}
}

func TestNextThatHangs(t *testing.T) {
	t.Setenv(actEnv, "hang")
	o := handoff.Options{Argv: []string{os.Args[0]}, Home: home, Limit: 50 * time.Millisecond}
	if _, err := handoff.Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), "did not send its hello within 50ms") {
		t.Errorf("%v", err)
	}
	o.Limit = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := handoff.Start(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestNextThatEndsInItsTurn(t *testing.T) {
	for act, want := range map[string]string{"crash": "the next agent has ended: exit status 4", "no-engine": "no engine"} {
		var log bytes.Buffer
		n, err := start(t, act, &log)
		if err != nil {
			t.Fatal(err, &log)
		}
		s, addr := socket(t)
		if err := n.Go([]*listenfd.Socket{s}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Await(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", act, err, want)
		}
		<-n.Ended()
		// This process still has the socket.
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Errorf("%s: connect after it: %v", act, err)
			continue
		}
		c.Close()
	}
}

// TestNextWithoutTurn: a next agent that does not get its turn exits.
func TestNextWithoutTurn(t *testing.T) {
	var log bytes.Buffer
	n, err := start(t, "serve", &log)
	if err != nil {
		t.Fatal(err, &log)
	}
	_ = n.Over() // closes this end; Over before Go is no turn
	<-n.Ended()
	if n.ExitCode() != 1 || !strings.Contains(log.String(), "continues to serve") {
		t.Errorf("exit code %d\n%s", n.ExitCode(), &log)
	}
}

// TestPredecessorThatIsKilled: the next agent detects that the first one was killed.
func TestPredecessorThatIsKilled(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOLDFAST_PREDECESSOR", fmt.Sprint(fds[1]))
	turn, err := handoff.Inherit()
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Close()
	if again, err := handoff.Inherit(); again != nil || err != nil {
		t.Errorf("a second turn: %v, %v", again, err)
	}
	if err := unix.Sendmsg(fds[0], []byte(`{"go":{"names":[]}}`), nil, nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := turn.Take(t.Context(), "v2", home, handoff.NewConnections(slog.New(slog.DiscardHandler))); err != nil {
		t.Fatal(err)
	}
	unix.Close(fds[0])
	select {
	case <-turn.Over():
	case <-time.After(time.Minute):
		t.Fatal("its exit was not detected")
	}
	if !turn.Orphaned() {
		t.Error("it is not reported as orphaned")
	}
}

func TestNoTurn(t *testing.T) {
	turn, err := handoff.Inherit()
	if turn != nil || err != nil {
		t.Errorf("%v, %v", turn, err)
	}
	turn.Say(handoff.Up)
	turn.Fail(errors.New("no"))
	turn.Close()
	if s, note, err := turn.Take(t.Context(), "v1", home, nil); s != nil || note != nil || err != nil || turn.Over() != nil {
		t.Errorf("%v %q %v", s, note, err)
	}
	t.Setenv("HOLDFAST_PREDECESSOR", "x")
	if _, err := handoff.Inherit(); err == nil {
		t.Error("an invalid descriptor was accepted")
	}
}
