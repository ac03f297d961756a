package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

func itoa(n int) string { return strconv.Itoa(n) }

func (s *suite) logs(t *testing.T) {
	id := s.start(t, s.spec("sh", "-c", "for i in 1 2 3; do echo out $i; echo err $i >&2; done"))
	s.waitExit(t, id)
	read := func(o engine.LogOptions) []string {
		t.Helper()
		var out bytes.Buffer
		if err := s.Engine.Logs(s.context(t), id, o, &out); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	}
	all := read(engine.LogOptions{Tail: -1})
	if len(all) != 6 {
		t.Errorf("all lines: %q", all)
	}
	// The order between the streams is the engine's, that within is kept.
	for _, stream := range []string{"out", "err"} {
		var got []string
		for _, line := range all {
			if strings.HasPrefix(line, stream) {
				got = append(got, line)
			}
		}
		if want := stream + " 1," + stream + " 2," + stream + " 3"; strings.Join(got, ",") != want {
			t.Errorf("lines of %s: %q", stream, got)
		}
	}
	if got := read(engine.LogOptions{Tail: 2}); len(got) != 2 || got[1] != all[5] {
		t.Errorf("the last two lines: %q of %q", got, all)
	}
	for _, line := range read(engine.LogOptions{Tail: -1, Timestamps: true}) {
		stamp, _, _ := strings.Cut(line, " ")
		if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil {
			t.Errorf("line %q has no time: %v", line, err)
		}
	}
	broken := errors.New("the reader has gone")
	if err := s.Engine.Logs(s.context(t), id, engine.LogOptions{Tail: -1}, failing{broken}); !errors.Is(err, broken) {
		t.Errorf("a failing writer: %v", err)
	}
}

// failing is a writer that has gone.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func (s *suite) logsFollow(t *testing.T) {
	id := s.start(t, s.spec("sh", "-c", "echo first; while [ ! -e /go ]; do sleep 0.01; done; echo last"))
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := s.Engine.Logs(s.context(t), id, engine.LogOptions{Tail: -1, Follow: true}, w)
		w.Close()
		done <- err
	}()
	line := make([]byte, len("first\n"))
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "first\n" {
		t.Errorf("the first line: %q, %v", line, err)
	}
	s.letGo(t, id)
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "last\n" {
		t.Errorf("the rest: %q, %v", rest, err)
	}
	if err := <-done; err != nil {
		t.Errorf("follow to the end: %v", err)
	}

	// A follower with a cancelled context.
	running := s.start(t, s.spec())
	ctx, cancel := context.WithCancel(s.context(t))
	go func() { done <- s.Engine.Logs(ctx, running, engine.LogOptions{Follow: true}, io.Discard) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled follower: %v", err)
	}
}

func (s *suite) exec(t *testing.T) {
	id := s.start(t, s.spec())
	var out, errs bytes.Buffer
	code, err := s.Engine.Exec(s.context(t), id, engine.Exec{
		Command: []string{"sh", "-c", "cat; echo problem >&2; exit 42"},
		Stdin:   strings.NewReader(strings.Repeat("a line of input\n", 10_000)),
		Stdout:  &out,
		Stderr:  &errs,
	})
	if err != nil || code != 42 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if out.String() != strings.Repeat("a line of input\n", 10_000) || errs.String() != "problem\n" {
		t.Errorf("%d bytes of output, errors %q", out.Len(), errs.String())
	}
	if code, err := s.Engine.Exec(s.context(t), id, engine.Exec{Command: []string{"echo", "without a reader"}}); err != nil || code != 0 {
		t.Errorf("without streams: exit code %d, %v", code, err)
	}
	// Output that ends before the command does.
	if code, err := s.Engine.Exec(s.context(t), id, engine.Exec{Command: []string{"sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 3"}}); err != nil || code != 3 {
		t.Errorf("a silent end: exit code %d, %v", code, err)
	}
}

func (s *suite) execErrors(t *testing.T) {
	id := s.start(t, s.spec())
	code, err := s.Engine.Exec(s.context(t), id, engine.Exec{Command: []string{"/no/such/program"}})
	if err == nil && code != 126 && code != 127 {
		t.Errorf("a missing program: exit code %d", code)
	}
	stopped := s.create(t, s.spec())
	if code, err := s.Engine.Exec(s.context(t), stopped, engine.Exec{Command: []string{"true"}}); err == nil {
		t.Errorf("in a container that does not run: exit code %d and no error", code)
	}
	broken := errors.New("the reader has gone")
	_, err = s.Engine.Exec(s.context(t), id, engine.Exec{Command: []string{"echo", "x"}, Stdout: failing{broken}})
	if !errors.Is(err, broken) {
		t.Errorf("a failing writer: %v", err)
	}
}

// execTTY drives a terminal: its size at the start, its size after a change,
// and typed input.
func (s *suite) execTTY(t *testing.T) {
	id := s.start(t, s.spec())
	input, typing := io.Pipe()
	defer typing.Close()
	sizes := make(chan engine.Size, 1)
	sizes <- engine.Size{Rows: 24, Cols: 80}
	screen := &screen{changed: make(chan struct{}, 1)}
	done := make(chan struct{})
	var code int
	var err error
	go func() {
		defer close(done)
		code, err = s.Engine.Exec(s.context(t), id, engine.Exec{
			// A command that tells its size, whenever it becomes another.
			Command: []string{"sh", "-c", `tty >/dev/null && echo terminal
				last=; while :; do now=$(stty size); [ "$now" = "$last" ] || echo "size $now"; last=$now
				read -t 1 word && [ "$word" = bye ] && exit 7; done`},
			TTY:    true,
			Stdin:  input,
			Stdout: screen,
			Resize: sizes,
		})
	}()
	screen.wait(t, "terminal\r\n")
	screen.wait(t, "size 24 80\r\n")
	sizes <- engine.Size{Rows: 50, Cols: 132}
	screen.wait(t, "size 50 132\r\n")
	if _, err := typing.Write([]byte("bye\n")); err != nil {
		t.Error(err)
	}
	within(t, "the end of a terminal", func() { <-done })
	if err != nil || code != 7 {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// screen collects what a terminal shows.
type screen struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) wait(t *testing.T, want string) {
	t.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		text := s.text.String()
		s.mu.Unlock()
		if strings.Contains(text, want) {
			return
		}
		select {
		case <-s.changed:
		case <-timeout:
			t.Fatalf("no %q on the screen: %q", want, text)
		}
	}
}

func (s *suite) execCancel(t *testing.T) {
	id := s.start(t, s.spec())
	ctx, cancel := context.WithCancel(s.context(t))
	screen := &screen{changed: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() {
		_, err := s.Engine.Exec(ctx, id, engine.Exec{Command: []string{"sh", "-c", "echo here; sleep inf"}, Stdout: screen})
		done <- err
	}()
	screen.wait(t, "here")
	cancel()
	within(t, "a cancelled command", func() {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled command: %v", err)
		}
	})
}

// execSignal sends a signal to a command that handles it, and one to a command that has
// ended.
func (s *suite) execSignal(t *testing.T) {
	id := s.start(t, s.spec())
	screen := &screen{changed: make(chan struct{}, 1)}
	signaler := make(chan engine.Signaler, 1)
	var code int
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		code, err = s.Engine.Exec(s.context(t), id, engine.Exec{
			Command: []string{"sh", "-c", "trap 'exit 9' USR1; echo here; while :; do sleep 0.05; done"},
			Stdout:  screen,
			Started: func(f engine.Signaler) { signaler <- f },
		})
	}()
	screen.wait(t, "here")
	send := <-signaler
	if err := send(s.context(t), syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	within(t, "a command that got a signal", func() { <-done })
	if err != nil || code != 9 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if err := send(s.context(t), syscall.SIGUSR1); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("a signal to a command that has ended: %v", err)
	}
}
