package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
)

func TestExec(t *testing.T) {
	c, _ := agent(t, started(t, "alice"))
	ctx := within(t)
	big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB, many frames
	for _, tt := range []struct {
		name, command, stdin string
		code                 int
		stdout, stderr       string
	}{
		{"output", "echo hello there", "", 0, "hello there\n", ""},
		{"error output", "warn oh no", "", 0, "", "oh no\n"},
		{"exit code", "exit 42", "", 42, "", ""},
		{"input to its end", "cat", big, 0, big, ""},
		{"unread input", "exit 3", big, 3, "", ""},
		{"empty input", "cat", "", 0, "", ""},
		{"flags", "tty", "", 0, "tty=false stdin=true\n", ""},
	} {
		var stdout, stderr bytes.Buffer
		code, err := c.Exec(ctx, "alice", api.Exec{Command: strings.Fields(tt.command),
			Stdin: strings.NewReader(tt.stdin), Stdout: &stdout, Stderr: &stderr})
		if err != nil || code != tt.code || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
			t.Errorf("%s: code %d, %v, %d bytes out, %q", tt.name, code, err, stdout.Len(), stderr.String())
		}
	}
	var stdout bytes.Buffer
	if _, err := c.Exec(ctx, "alice", api.Exec{Command: []string{"tty"}, TTY: true, Stdout: &stdout}); err != nil || stdout.String() != "tty=true stdin=false\n" {
		t.Errorf("%v, %q", err, stdout.String())
	}
}

func TestExecErrors(t *testing.T) {
	c, _ := agent(t, started(t, "alice"))
	ctx := within(t)
	if _, err := c.Exec(ctx, "missing", api.Exec{Command: []string{"echo"}}); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	if _, err := c.Exec(ctx, "alice", api.Exec{Command: []string{"frobnicate"}}); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("no such command: %v", err)
	}
	var e *api.Error
	if _, err := c.Exec(ctx, "alice", api.Exec{}); !errors.As(err, &e) || e.Code != api.CodeBadRequest {
		t.Errorf("no command: %v", err)
	}
}

func TestExecSizes(t *testing.T) {
	c, _ := agent(t, started(t, "alice"))
	r, w := io.Pipe()
	sizes := make(chan api.Size, 1)
	sizes <- api.Size{Rows: 24, Cols: 80}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(within(t), "alice", api.Exec{Command: []string{"size"}, TTY: true, Stdout: w, Resize: sizes})
		w.Close()
		ended <- err
	}()
	line := make([]byte, len("80x24\n"))
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "80x24\n" {
		t.Fatalf("%q, %v", line, err)
	}
	sizes <- api.Size{Rows: 50, Cols: 132}
	rest, err := io.ReadAll(r)
	if err != nil || string(rest) != "132x50\n" {
		t.Errorf("%q, %v", rest, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A terminal has a size even if the client does not know one, as with -t in a script:
// the part that runs the command may wait for the first size.
func TestExecTerminalWithoutSize(t *testing.T) {
	c, _ := agent(t, started(t, "alice"))
	ctx, cancel := context.WithCancel(within(t))
	r, w := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.Exec(ctx, "alice", api.Exec{Command: []string{"size"}, TTY: true, Stdout: w}) // cancelled below
		w.Close()
	}()
	line := make([]byte, len("80x24\n"))
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "80x24\n" {
		t.Errorf("%q, %v", line, err)
	}
	cancel()
	<-ended
}

// watched reports when an Exec has returned.
type watched struct {
	*apitest.Backend
	returned chan error
}

func (b watched) Parts() api.Parts {
	p := b.Backend.Parts()
	p.Commands = b
	return p
}

func (b watched) Exec(ctx context.Context, key holdfast.SessionKey, e api.Exec) (int, error) {
	code, err := b.Backend.Exec(ctx, key, e)
	b.returned <- err
	return code, err
}

// If one side disconnects, the other side ends.
func TestExecHangUp(t *testing.T) {
	for _, side := range []string{"client", "agent"} {
		b := watched{started(t, "alice"), make(chan error, 1)}
		c, stop := agent(t, b)
		ctx, cancel := context.WithCancel(within(t))
		r, w := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			_, err := c.Exec(ctx, "alice", api.Exec{Command: []string{"wait"}, Stdout: w})
			ended <- err
		}()
		if _, err := io.ReadFull(r, make([]byte, len("waiting\n"))); err != nil {
			t.Fatal(err)
		}
		if side == "client" {
			cancel()
		} else {
			stop()
		}
		if err := <-b.returned; !errors.Is(err, context.Canceled) {
			t.Errorf("%s hung up, the command ended with %v", side, err)
		}
		if err := <-ended; err == nil {
			t.Errorf("%s hung up, and that was no error", side)
		}
		cancel()
	}
}

// Streams are bounded: one more is refused, and the next is accepted after one has
// ended.
func TestStreamsAreBounded(t *testing.T) {
	const bound = 128
	c, _ := agent(t, started(t, "alice"))
	ctx, cancel := context.WithCancel(within(t))
	r, w := io.Pipe()
	ended := make(chan struct{}, bound)
	for range bound {
		go func() {
			_, _ = c.Exec(ctx, "alice", api.Exec{Command: []string{"wait"}, Stdout: w})
			ended <- struct{}{}
		}()
	}
	if _, err := io.ReadFull(r, make([]byte, bound*len("waiting\n"))); err != nil {
		t.Fatal(err)
	}
	if err := c.Logs(within(t), "alice", api.LogOptions{Tail: 1}, io.Discard); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("stream %d: %v", bound+1, err)
	}
	cancel()
	for range bound {
		<-ended
	}
	for again := within(t); ; {
		err := c.Logs(again, "alice", api.LogOptions{Tail: 1}, io.Discard)
		if err == nil {
			break
		}
		if !errors.Is(err, holdfast.ErrBusy) {
			t.Fatal(err)
		}
	}
}
