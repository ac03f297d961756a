package api

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/control/api/frame"
)

// Times of an exec stream.
const (
	pingEvery   = 15 * time.Second // a client that is gone is noticed within this
	lingerLimit = 2 * time.Second  // for the client to hang up after Exit
)

// exec checks the request as any other, then takes the connection over.
func (s *server) exec(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	var q ExecRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if len(q.Command) == 0 || q.Command[0] == "" {
		return &Error{Code: CodeBadRequest, Message: "the command is empty"}
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), frame.Protocol) {
		return &Error{Code: CodeBadRequest, Message: "exec needs the header Upgrade: " + frame.Protocol}
	}
	note(r.Context(), "command", bounded(q.Command[0])) // not its arguments: they may be secret
	closed, err := s.open()
	if err != nil {
		return err
	}
	defer closed()
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return &Error{Code: CodeBadRequest, Message: "exec needs a connection of its own", Advice: "use HTTP/1.1"}
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{}) // those of the request are past
	if err := s.serveExec(r.Context(), conn, rw.Reader, key, q); err != nil {
		return sent{err}
	}
	return nil
}

func (s *server) serveExec(ctx context.Context, conn net.Conn, in *bufio.Reader, key holdfast.SessionKey, q ExecRequest) error {
	const accept = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + frame.Protocol + "\r\n\r\n"
	if _, err := io.WriteString(conn, accept); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Whoever waits on the connection stops when the agent ends.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now().Add(lingerLimit)) })
	defer stop()

	f := frame.NewConn(in, conn)
	stdin, feed := io.Pipe()
	resize := make(chan Size, 1)
	e := Exec{Command: q.Command, TTY: q.TTY, Stdout: f.Writer(frame.Stdout), Stderr: f.Writer(frame.Stderr)}
	if q.Stdin {
		e.Stdin = stdin
	}
	if q.TTY {
		// There is always a first size: the backend may wait for one.
		resize <- cmp.Or(q.size(), Size{Rows: 24, Cols: 80})
		e.Resize = resize
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		hear(f, feed, resize)
		cancel() // the client is gone
	}()
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		ping(ctx, f, s.pingEvery, cancel)
	}()

	code, err := s.b.Exec(ctx, key, e)
	failed := err
	_ = stdin.CloseWithError(io.ErrClosedPipe) // nobody reads on: let hear discard
	exit := ExecExit{ExitCode: code}
	if err != nil {
		exit = ExecExit{ExitCode: -1, Error: toError(err)}
	}
	b, err := json.Marshal(exit)
	if err == nil {
		err = f.Write(frame.Exit, b)
	}
	// Hang up after the client did: closing with bytes unread would reset
	// the connection, and Exit might not arrive.
	_ = conn.SetReadDeadline(time.Now().Add(lingerLimit))
	<-heard
	cancel()
	<-pinged
	return cmp.Or(failed, err)
}

// hear takes the client's frames until it hangs up.
func hear(f *frame.Conn, stdin *io.PipeWriter, resize chan Size) {
	for {
		kind, p, err := f.Read()
		if err != nil {
			_ = stdin.CloseWithError(io.ErrUnexpectedEOF)
			return
		}
		switch kind {
		case frame.Stdin:
			if len(p) == 0 {
				_ = stdin.Close()
				continue
			}
			// An error means that the command reads no more: discard.
			_, _ = stdin.Write(p)
		case frame.Resize:
			var size Size
			if json.Unmarshal(p, &size) == nil {
				putNewest(resize, size)
			}
		}
	}
}

// putNewest puts the newest size where one that nobody took may still be.
func putNewest(ch chan Size, s Size) {
	for {
		select {
		case ch <- s:
			return
		default:
		}
		select {
		case <-ch:
		default:
		}
	}
}

// ping writes now and then until ctx is done, and calls lost when that fails:
// hear does not notice a client that is gone while the command leaves its input
// unread.
func ping(ctx context.Context, f *frame.Conn, every time.Duration, lost func()) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := f.Write(frame.Ping, nil); err != nil {
				lost()
				return
			}
		}
	}
}
