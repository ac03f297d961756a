package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/frame"
)

// Exec runs a command in the session's container and returns its exit code after all of
// its output is written. A running Read of e.Stdin is not interrupted: its data is
// lost.
func (c *Client) Exec(ctx context.Context, key holdfast.SessionKey, e api.Exec) (int, error) {
	q := api.ExecRequest{Command: e.Command, TTY: e.TTY, Env: e.Env, Dir: e.Dir, User: e.User, Stdin: e.Stdin != nil}
	select {
	case s := <-e.Resize: // a size that is already known is sent first
		q.Size = &s
	default:
	}
	return c.stream(ctx, sessionPath(key, "/exec"), q, e, nil)
}

// Attach joins a detached command at an offset of its output, and returns its exit code
// once it has ended and its output is written. With an error the command may still run.
// The Command and the TTY of e do not count. Below 0 the offset counts from the end. at
// gets the position of the output before the first byte and wherever bytes were lost, and
// after each write.
func (c *Client) Attach(ctx context.Context, key holdfast.SessionKey, id string, q api.AttachRequest, e api.Exec, at func(frame.Position)) (int, error) {
	return c.stream(ctx, commandPath(key, id, "/attach"), q, e, at)
}

// StartCommand starts a detached command and returns when the engine has accepted it.
func (c *Client) StartCommand(ctx context.Context, key holdfast.SessionKey, q api.ExecRequest) (started holdfast.Command, err error) {
	err = c.ask(ctx, http.MethodPost, sessionPath(key, "/commands"), q, &started)
	return started, err
}

// Commands lists the detached commands of a session.
func (c *Client) Commands(ctx context.Context, key holdfast.SessionKey) ([]holdfast.Command, error) {
	var all api.Commands
	err := c.ask(ctx, http.MethodGet, sessionPath(key, "/commands"), nil, &all)
	return all.Commands, err
}

// SignalCommand sends a signal, such as TERM, to a detached command.
func (c *Client) SignalCommand(ctx context.Context, key holdfast.SessionKey, id, signal string) error {
	return c.ask(ctx, http.MethodPost, commandPath(key, id, "/signal"), api.SignalRequest{Signal: signal}, nil)
}

func commandPath(key holdfast.SessionKey, id, what string) string {
	return sessionPath(key, "/commands/"+url.PathEscape(id)+what)
}

// stream upgrades a connection with the request q and exchanges the streams of a command
// until the command has ended.
func (c *Client) stream(ctx context.Context, path string, q any, e api.Exec, at func(frame.Position)) (int, error) {
	conn, err := c.upgrade(ctx, path, q)
	if err != nil {
		return -1, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	done, cancel := context.WithCancel(ctx)
	defer cancel()

	f := frame.NewConn(bufio.NewReader(conn), conn)
	if e.Stdin != nil {
		go sendInput(f, e.Stdin)
	}
	if e.Resize != nil {
		go sendSizes(done, f, e.Resize)
	}
	out := map[frame.Kind]io.Writer{frame.Stdout: e.Stdout, frame.Stderr: e.Stderr}
	var position frame.Position
	for {
		kind, p, err := f.Read()
		if err != nil {
			return -1, c.lost(ctx, err)
		}
		switch kind {
		case frame.Exit:
			return exitOf(p)
		case frame.Offset:
			if err := json.Unmarshal(p, &position); err != nil {
				return -1, fmt.Errorf("reading the position of the output: %w", err)
			}
		case frame.Stdout, frame.Stderr:
			if w := out[kind]; w != nil {
				if _, err := w.Write(p); err != nil {
					return -1, fmt.Errorf("writing the command's output: %w", err)
				}
			}
			position = frame.Position{Offset: position.Offset + int64(len(p))}
		}
		if at != nil && kind != frame.Ping {
			at(position)
		}
	}
}

// upgrade sends a request and returns the upgraded connection.
func (c *Client) upgrade(ctx context.Context, path string, q any) (io.ReadWriteCloser, error) {
	r, err := c.request(ctx, http.MethodPost, path, q)
	if err != nil {
		return nil, err
	}
	frame.Request(r)
	resp, err := c.send(r)
	if err != nil {
		return nil, err
	}
	conn, ok := frame.Upgraded(resp)
	if !ok {
		return nil, fmt.Errorf("the agent did not upgrade the connection: status %s", resp.Status)
	}
	return conn, nil
}

func sendInput(f *frame.Conn, in io.Reader) {
	// If sending fails, the exec has ended, and its reader sees that. If reading fails,
	// the input ends.
	_, _ = io.Copy(f.Writer(frame.Stdin), in)
	_ = f.Write(frame.Stdin, nil)
}

func sendSizes(ctx context.Context, f *frame.Conn, sizes <-chan api.Size) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-sizes:
			if f.WriteJSON(frame.Resize, s) != nil {
				return
			}
		}
	}
}

func exitOf(p []byte) (int, error) {
	var exit api.ExecExit
	if err := json.Unmarshal(p, &exit); err != nil {
		return -1, fmt.Errorf("reading the command's exit code: %w", err)
	}
	if exit.Error != nil {
		return -1, exit.Error
	}
	return exit.ExitCode, nil
}
