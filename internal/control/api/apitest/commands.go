package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/frame"
)

// detached is a detached command.
type detached struct {
	holdfast.Command
	output string
	over   chan struct{} // closed when it has ended
}

// StartCommand implements api.CommandService with these commands:
//
//	echo WORD…  prints the words
//	exit N      exits with code N
//	lossy       prints "kept", and has lost the 100 bytes before it
//	wait        prints "waiting" and ends by a signal, with code 128 and its number
//	read        prints its input up to a line break, in quotes
func (b *Backend) StartCommand(ctx context.Context, key holdfast.SessionKey, q api.ExecRequest) (holdfast.Command, error) {
	s, err := b.Session(ctx, key)
	if err != nil {
		return holdfast.Command{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &detached{over: make(chan struct{}), Command: holdfast.Command{
		ID: fmt.Sprintf("c%d", len(b.commands)+1), Key: key, ContainerID: s.ContainerID, Command: q.Command, TTY: q.TTY, Stdin: q.Stdin, StartedAt: Began,
	}}
	words := strings.Join(q.Command[1:], " ")
	switch q.Command[0] {
	case "echo":
		c.output = words + "\n"
	case "exit":
		_, err = fmt.Sscan(words, &c.ExitCode)
	case "lossy":
		c.output, c.Lost = "kept\n", 100
	case "wait":
		c.output = "waiting\n"
	case "read":
	default:
		err = fmt.Errorf("%s: %w", q.Command[0], holdfast.ErrNotFound)
	}
	if err != nil {
		return holdfast.Command{}, err
	}
	c.Output = c.Lost + int64(len(c.output))
	if q.Command[0] != "wait" && q.Command[0] != "read" {
		c.end(c.ExitCode)
	}
	b.commands = append(b.commands, c)
	return c.Command, nil
}

func (c *detached) end(code int) {
	c.ExitCode, c.EndedAt = code, Began.Add(2*time.Second)
	close(c.over)
}

// Commands implements api.CommandService.
func (b *Backend) Commands(_ context.Context, key holdfast.SessionKey) (list []holdfast.Command, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.commands {
		if c.Key == key {
			list = append(list, c.Command)
		}
	}
	return list, b.fault
}

func (b *Backend) command(key holdfast.SessionKey, id string) (*detached, error) {
	if b.fault != nil {
		return nil, b.fault
	}
	for _, c := range b.commands {
		if c.Key == key && c.ID == id {
			return c, nil
		}
	}
	return nil, fmt.Errorf("command %s of session %s: %w", id, key, holdfast.ErrNotFound)
}

// SignalCommand implements api.CommandService.
func (b *Backend) SignalCommand(_ context.Context, key holdfast.SessionKey, id string, sig syscall.Signal) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, err := b.command(key, id)
	if err != nil {
		return err
	}
	if !c.Running() {
		return fmt.Errorf("command %s does not run: %w", id, holdfast.ErrNotFound)
	}
	c.end(128 + int(sig))
	return nil
}

// AttachCommand implements api.CommandService.
func (b *Backend) AttachCommand(_ context.Context, key holdfast.SessionKey, id string, q api.AttachRequest) (io.ReadWriteCloser, error) {
	offset := q.Offset
	b.mu.Lock()
	defer b.mu.Unlock()
	c, err := b.command(key, id)
	if err != nil {
		return nil, err
	}
	if offset > c.Output {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("the output has %d bytes, the offset is %d", c.Output, offset)}
	}
	if offset < 0 {
		offset = max(0, c.Output+offset)
	}
	ours, theirs := net.Pipe()
	go b.serve(c, ours, offset)
	return theirs, nil
}

// serve sends a command's output and exit. It returns when the caller has disconnected.
func (b *Backend) serve(c *detached, conn net.Conn, from int64) {
	defer conn.Close()
	f := frame.NewConn(conn, conn)
	send := func(k frame.Kind, v any) {
		p, _ := json.Marshal(v)
		_ = f.Write(k, p) // the caller may be gone
	}
	at := max(from, c.Lost)
	send(frame.Offset, frame.Position{Offset: at, Lost: at - from})
	if text := c.output[at-c.Lost:]; text != "" {
		_ = f.Write(frame.Stdout, []byte(text)) // likewise
	}
	go func() {
		var line []byte
		for {
			kind, p, err := f.Read()
			if err != nil {
				return
			}
			if line = append(line, p...); kind == frame.Stdin && len(p) > 0 && c.Command.Command[0] == "read" && strings.ContainsAny(string(line), "\r\n") {
				_ = f.Write(frame.Stdout, fmt.Appendf(nil, "got %q\r\n", line)) // likewise
				b.mu.Lock()
				if c.Running() {
					c.end(0)
				}
				b.mu.Unlock()
				return // the end of the input is another frame
			}
		}
	}()
	<-c.over
	b.mu.Lock()
	code := c.ExitCode
	b.mu.Unlock()
	send(frame.Exit, api.ExecExit{ExitCode: code})
}
