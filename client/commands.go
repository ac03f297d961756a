package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"holdfast"
	"holdfast/internal/platform/frame"
)

// Streams are those of a command. Each may be nil.
type Streams struct {
	Stdin          io.Reader // a Read that runs when the command ends is not interrupted
	Stdout, Stderr io.Writer
	// Terminal makes Exec give the command a terminal of this size. All of its output is
	// then Stdout.
	Terminal *Size
	Resize   <-chan Size // further sizes; never closed
}

// Size is that of a terminal, in characters. 0 is the usual one.
type Size struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// command is the body of a request for a command.
type command struct {
	Command []string `json:"command"`
	Stdin   bool     `json:"stdin,omitempty"`
	TTY     bool     `json:"tty,omitempty"`
	Size    *Size    `json:"size,omitempty"`
}

// Exec runs a command in the session's container and returns its exit code after all of
// its output is written. If ctx ends, the command continues without input and output.
func (c *Client) Exec(ctx context.Context, key holdfast.SessionKey, words []string, s Streams) (exitCode int, err error) {
	return c.stream(ctx, at(key, "/exec"), command{words, s.Stdin != nil, s.Terminal != nil, s.Terminal}, s, nil)
}

// StartCommand starts a detached command, which outlives its caller. With stdin it takes
// input from Attach. holdfast.ErrBusy: there are too many.
func (c *Client) StartCommand(ctx context.Context, key holdfast.SessionKey, words []string, stdin bool) (started holdfast.Command, err error) {
	return started, c.Call(ctx, http.MethodPost, at(key, "/commands"), command{Command: words, Stdin: stdin}, &started)
}

// Commands lists a session's detached commands, by their start: those that run, and those
// that ended in the last ten minutes.
func (c *Client) Commands(ctx context.Context, key holdfast.SessionKey) ([]holdfast.Command, error) {
	var a struct{ Commands []holdfast.Command }
	err := c.Call(ctx, http.MethodGet, at(key, "/commands"), nil, &a)
	return a.Commands, err
}

// SignalCommand sends a signal such as TERM to a detached command. holdfast.ErrNotFound:
// it does not run.
func (c *Client) SignalCommand(ctx context.Context, key holdfast.SessionKey, id, signal string) error {
	in := struct {
		Signal string `json:"signal"`
	}{signal}
	return c.Call(ctx, http.MethodPost, at(key, "/commands/"+url.PathEscape(id)+"/signal"), in, nil)
}

// Position is a place in all output of a detached command.
type Position struct {
	Offset int64 // of the next byte
	Lost   int64 // bytes right before it that the agent no longer keeps
}

// Attach joins a detached command at an offset of its output, which below 0 counts from
// the end. It returns the command's exit code once it has ended. After an error, the last
// Offset that moved was called with is where to attach again. moved may be nil.
func (c *Client) Attach(ctx context.Context, key holdfast.SessionKey, id string, offset int64, s Streams, moved func(Position)) (exitCode int, err error) {
	in := struct {
		Offset int64 `json:"offset,omitempty"`
	}{offset}
	return c.stream(ctx, at(key, "/commands/"+url.PathEscape(id)+"/attach"), in, s, moved)
}

// stream upgrades a connection and copies a command's streams until the command ends.
func (c *Client) stream(ctx context.Context, path string, in any, s Streams, moved func(Position)) (int, error) {
	resp, err := c.send(ctx, http.MethodPost, path, in, frame.Request)
	if err != nil {
		return -1, err
	}
	conn, ok := frame.Upgraded(resp)
	if !ok {
		return -1, errors.New("the agent did not upgrade the connection")
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	f := frame.NewConn(bufio.NewReader(conn), conn)
	if s.Stdin != nil {
		go func() {
			_, _ = io.Copy(f.Writer(frame.Stdin), s.Stdin) // if it fails, the reader below sees it
			_ = f.Write(frame.Stdin, nil)                  // the end of the input
		}()
	}
	if s.Resize != nil {
		ended := make(chan struct{})
		defer close(ended)
		go s.resize(f, ended)
	}
	code, err := s.read(f, moved)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return code, err
}

// resize sends sizes until the command has ended.
func (s Streams) resize(f *frame.Conn, ended <-chan struct{}) {
	for {
		select {
		case size := <-s.Resize:
			if f.WriteJSON(frame.Resize, size) != nil {
				return // the reader sees it
			}
		case <-ended:
			return
		}
	}
}

// read copies output until the command's end.
func (s Streams) read(f *frame.Conn, moved func(Position)) (int, error) {
	var now Position
	for {
		kind, p, err := f.Read()
		if err != nil {
			return -1, fmt.Errorf("reading the command's output: %w", err)
		}
		switch kind {
		case frame.Exit:
			return exitOf(p)
		case frame.Offset:
			var there frame.Position
			if err := json.Unmarshal(p, &there); err != nil {
				return -1, fmt.Errorf("reading the position of the output: %w", err)
			}
			now = Position(there)
		case frame.Stdout, frame.Stderr:
			w := s.Stdout
			if kind == frame.Stderr {
				w = s.Stderr
			}
			if w != nil {
				if _, err := w.Write(p); err != nil {
					return -1, fmt.Errorf("writing the command's output: %w", err)
				}
			}
			now = Position{Offset: now.Offset + int64(len(p))}
		default:
			continue
		}
		if moved != nil {
			moved(now)
		}
	}
}

func exitOf(p []byte) (int, error) {
	var exit struct {
		ExitCode int    `json:"exit_code"`
		Error    *Error `json:"error"`
	}
	if err := json.Unmarshal(p, &exit); err != nil {
		return -1, fmt.Errorf("reading the command's exit code: %w", err)
	}
	if exit.Error != nil {
		return -1, exit.Error
	}
	return exit.ExitCode, nil
}
