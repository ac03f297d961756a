package commands

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/frame"
)

// Request describes a command to start.
type Request struct {
	Key       holdfast.SessionKey `json:"key"`
	Container string              `json:"container"`
	Command   []string            `json:"command"`
	TTY       bool                `json:"tty"`
	Env       []string            `json:"env,omitempty"`
	Dir       string              `json:"dir,omitempty"`
	User      string              `json:"user,omitempty"`
	Stdin     bool                `json:"stdin"`          // callers may send input
	Size      engine.Size         `json:"size"`           // first size of the terminal
	Hold      bool                `json:"hold,omitempty"` // the output waits for the first caller that attaches; see holdLimit
}

// command is one command. Its methods may be called from any goroutine.
type command struct {
	request Request
	out     *ring
	in      *input // nil: it takes no input
	sizes   chan engine.Size
	has     sizeOf
	began   chan struct{} // closed when the engine has accepted it
	done    chan struct{} // closed when it has ended

	mu       sync.Mutex
	info     holdfast.Command
	signaler engine.Signaler // nil before began
	first    *reader         // keeps the place of the first caller; nil: no place is kept
	failed   error           // of a command that the engine did not accept
}

func newCommand(q Request, now time.Time) *command {
	c := &command{
		request: q, out: newRing(), sizes: make(chan engine.Size, 1), began: make(chan struct{}), done: make(chan struct{}),
		info: holdfast.Command{
			ID: strings.ToLower(rand.Text()[:8]), Key: q.Key, ContainerID: q.Container, Command: q.Command, TTY: q.TTY, Stdin: q.Stdin, StartedAt: now.UTC(),
		},
	}
	if q.Stdin {
		c.in = newInput()
	}
	if q.Hold {
		c.first = c.out.hold(0)
	}
	c.sizes <- q.Size
	return c
}

// run runs the command and returns when it has ended.
func (c *command) run(ctx context.Context, e engine.Engine) {
	x := engine.Exec{
		Command: c.info.Command, TTY: c.info.TTY, Env: c.request.Env, Dir: c.request.Dir, User: c.request.User, Stdout: c.out.writer(frame.Stdout), Stderr: c.out.writer(frame.Stderr),
		Started: func(s engine.Signaler) {
			c.mu.Lock()
			c.signaler = s
			c.mu.Unlock()
			close(c.began)
		},
	}
	if c.in != nil {
		x.Stdin = c.in
		defer c.in.end()
	}
	if c.info.TTY {
		x.Resize, x.Resized = c.sizes, c.has.set
	}
	code, err := e.Exec(ctx, c.info.ContainerID, x)
	c.end(ctx, e, code, err)
}

// end records the end of the command.
func (c *command) end(ctx context.Context, e engine.Engine, code int, err error) {
	dead := err != nil && died(ctx, e, c.info.ContainerID) // set before, and never changed
	c.mu.Lock()
	defer c.mu.Unlock()
	c.info.EndedAt, c.info.ExitCode = time.Now().UTC(), code
	switch {
	case err == nil:
	case c.signaler == nil:
		c.failed = err
	default:
		c.info.ExitCode, c.info.Error = -1, err.Error()
		if dead {
			c.info.Error = "its container has ended"
		}
	}
	c.out.end()
	close(c.done)
}

// died reports whether a container does not run any more.
func died(ctx context.Context, e engine.Engine, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	at, err := e.Inspect(ctx, id)
	return errors.Is(err, holdfast.ErrNotFound) || err == nil && !at.Running()
}

// show returns the command as callers see it.
func (c *command) show() holdfast.Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	info := c.info
	info.Lost, info.Output = c.out.count()
	return info
}

// enter counts a caller that reads the output, until leave is called. holdfast.ErrBusy.
func (c *command) enter() (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.info.Attached == maxAttached {
		return nil, fmt.Errorf("%d callers are attached to command %s: %w", maxAttached, c.info.ID, holdfast.ErrBusy)
	}
	c.info.Attached++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.info.Attached--
	}, nil
}

// resizeLimit is how long the input after a new size waits until the terminal has it.
const resizeLimit = time.Second

// sizeOf is the size that a terminal has.
type sizeOf struct {
	mu      sync.Mutex
	size    engine.Size
	changed chan struct{} // closed at the next change; nil: nothing waits
}

func (s *sizeOf) set(size engine.Size) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size = size
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// await waits until the terminal has a size, resizeLimit at most.
func (s *sizeOf) await(ctx context.Context, size engine.Size) {
	ctx, cancel := context.WithTimeout(ctx, resizeLimit)
	defer cancel()
	for {
		s.mu.Lock()
		if s.size == size {
			s.mu.Unlock()
			return
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// resize sets the terminal's size.
func (c *command) resize(s engine.Size) {
	for {
		select {
		case c.sizes <- s:
			return
		default:
		}
		select {
		case <-c.sizes: // not read yet, and outdated
		default:
		}
	}
}

// signal sends a signal. A command that has ended is holdfast.ErrNotFound.
func (c *command) signal(ctx context.Context, sig syscall.Signal) error {
	c.mu.Lock()
	s, id, over := c.signaler, c.info.ID, !c.info.Running()
	c.mu.Unlock()
	if s == nil || over {
		return fmt.Errorf("command %s does not run: %w", id, holdfast.ErrNotFound)
	}
	return s(ctx, sig)
}

// refused is the error of a command that the engine did not accept, or nil.
func (c *command) refused() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}
