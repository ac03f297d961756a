package api

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/frame"
)

// Times of an exec stream.
const (
	pingEvery   = 15 * time.Second // a lost client is noticed within this time
	lingerLimit = 2 * time.Second  // for the client to close after Exit
)

// Exec is a command to run in a session's container.
type Exec struct {
	Command []string
	TTY     bool
	Env     []string // as in ExecRequest
	Dir     string
	User    string
	// Stdin, Stdout and Stderr may be nil. With TTY all output goes to
	// Stdout.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize delivers the terminal's size and is never closed. A SessionService
	// gets it with TTY only, and then always with a first size in it. A client
	// may leave it nil.
	Resize <-chan Size
}

// Size is a terminal's size in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExecRequest opens an exec stream; package frame describes what follows it.
type ExecRequest struct {
	Command []string `json:"command"` // not empty
	TTY     bool     `json:"tty,omitempty"`
	Stdin   bool     `json:"stdin,omitempty"` // stdin frames will follow
	Size    *Size    `json:"size,omitempty"`  // first size of the terminal; 80 by 24 if absent
	Env     []string `json:"env,omitempty"`   // NAME=VALUE, added to the container's environment
	Dir     string   `json:"dir,omitempty"`   // working directory; default: the container's
	User    string   `json:"user,omitempty"`  // UID:GID in the container, without other groups; default: the container's user
	// Hold makes a detached command wait up to 10 s for the first caller that attaches,
	// rather than lose output.
	Hold bool `json:"hold,omitempty"`
}

// ExecExit is the payload of the last frame of an exec stream.
type ExecExit struct {
	ExitCode int    `json:"exit_code"`
	Error    *Error `json:"error,omitempty"` // the command could not be run
}

// exec checks the request like any other, then takes over the connection.
func (h commandHandlers) exec(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	q, err := execRequest(w, r)
	if err != nil {
		return err
	}
	if err := upgrades(r); err != nil {
		return err
	}
	return switchTo(w, func(conn net.Conn, in *bufio.Reader) error { return h.serveExec(r.Context(), conn, in, key, q) })
}

// execRequest reads a command, and notes it for the audit log.
func execRequest(w http.ResponseWriter, r *http.Request) (q ExecRequest, err error) {
	if err := decode(w, r, &q); err != nil {
		return q, err
	}
	if len(q.Command) == 0 || q.Command[0] == "" {
		return q, badRequest("the command is empty")
	}
	if err := q.checkProcess(); err != nil {
		return q, err
	}
	note(r.Context(), "command", bounded(q.Command[0])) // not its arguments: they may be secret
	return q, nil
}

// userPattern is the form of ExecRequest.User.
const userPattern = `^[0-9]{1,10}:[0-9]{1,10}$`

// checkProcess checks what a command has beside its words.
func (q ExecRequest) checkProcess() error {
	for _, v := range q.Env {
		if i := strings.IndexByte(v, '='); i < 1 || strings.ContainsRune(v, 0) {
			return badRequest("env: a variable is not NAME=VALUE")
		}
	}
	switch {
	case q.Dir != "" && (!path.IsAbs(q.Dir) || strings.ContainsRune(q.Dir, 0)):
		return badRequest("dir: %q is not an absolute path", bounded(q.Dir))
	case q.User != "" && !regexp.MustCompile(userPattern).MatchString(q.User):
		return badRequest("user: %q is not UID:GID", bounded(q.User))
	}
	return nil
}

// upgrades returns an error for a request that does not ask for the protocol of frames.
func upgrades(r *http.Request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), frame.Protocol) {
		return badRequest("%s needs the header Upgrade: %s", path.Base(r.URL.Path), frame.Protocol)
	}
	return nil
}

// takeOver takes a connection over from the server. Bytes that the client has sent
// already are in the reader.
func takeOver(w http.ResponseWriter) (net.Conn, *bufio.Reader, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, &Error{Code: CodeBadRequest, Message: "this needs a connection of its own", Advice: "use HTTP/1.1"}
	}
	_ = conn.SetDeadline(time.Time{}) // drop the deadlines of the request
	return conn, rw.Reader, nil
}

// switchTo takes a connection over, accepts the protocol of frames, and serves it until
// serve returns. It then closes the connection.
func switchTo(w http.ResponseWriter, serve func(net.Conn, *bufio.Reader) error) error {
	conn, in, err := takeOver(w)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err = io.WriteString(conn, frame.Accept); err == nil {
		err = serve(conn, in)
	}
	if err != nil {
		return sent{err}
	}
	return nil
}

func (h commandHandlers) serveExec(ctx context.Context, conn net.Conn, in *bufio.Reader, key holdfast.SessionKey, q ExecRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Reads and writes of the connection end when the agent ends.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now().Add(lingerLimit)) })
	defer stop()

	f := frame.NewConn(in, conn)
	stdin, feed := io.Pipe()
	resize := make(chan Size, 1)
	e := Exec{Command: q.Command, TTY: q.TTY, Env: q.Env, Dir: q.Dir, User: q.User, Stdout: f.Writer(frame.Stdout), Stderr: f.Writer(frame.Stderr)}
	if q.Stdin {
		e.Stdin = stdin
	}
	if q.TTY {
		// There is always a first size: Exec may wait for one.
		size := Size{Rows: 24, Cols: 80}
		if q.Size != nil && *q.Size != (Size{}) {
			size = *q.Size
		}
		resize <- size
		e.Resize = resize
	}
	var reading, pinging sync.WaitGroup
	reading.Go(func() {
		readFrames(f, feed, resize)
		cancel() // the client has disconnected
	})
	pinging.Go(func() { f.KeepAlive(ctx, cmp.Or(h.pingEvery, pingEvery), cancel) })

	code, err := h.commands.Exec(ctx, key, e)
	failed := err
	_ = stdin.CloseWithError(io.ErrClosedPipe) // no more reads: readFrames discards the rest
	exit := ExecExit{ExitCode: code}
	if err != nil {
		exit = ExecExit{ExitCode: -1, Error: ErrorOf(err)}
	}
	err = f.WriteJSON(frame.Exit, exit)
	// Close after the client: closing with unread bytes would reset the
	// connection, and the client might not get Exit.
	_ = conn.SetReadDeadline(time.Now().Add(lingerLimit))
	reading.Wait()
	cancel()
	pinging.Wait()
	return cmp.Or(failed, err)
}

// readFrames reads the client's frames until the client disconnects.
func readFrames(f *frame.Conn, stdin *io.PipeWriter, resize chan Size) {
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
			// An error means that the command reads no more input: discard it.
			_, _ = stdin.Write(p)
		case frame.Resize:
			var size Size
			if json.Unmarshal(p, &size) == nil {
				putNewest(resize, size)
			}
		}
	}
}

// putNewest puts a size into a channel with room for one, in place of an older
// size that was not read.
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
