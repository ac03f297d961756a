package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// Exec runs a command in a running container and returns its exit code: 126 or 127 if
// it could not be run. When ctx ends first, the command loses its streams but goes
// on: the engine has no call that ends it. A Read of x.Stdin may still block when
// Exec returns.
func (e *Engine) Exec(ctx context.Context, id string, x engine.Exec) (int, error) {
	first, err := x.FirstSize(ctx)
	if err != nil {
		return -1, fmt.Errorf("run a command in container %s: %w", id, err)
	}
	size := client.ConsoleSize{Height: first.Rows, Width: first.Cols}
	created, err := e.api().ExecCreate(ctx, id, client.ExecCreateOptions{
		Cmd:          x.Command,
		TTY:          x.TTY,
		Env:          x.Env,
		WorkingDir:   x.Dir,
		User:         x.User,
		ConsoleSize:  size,
		AttachStdin:  x.Stdin != nil,
		AttachStdout: true,
		AttachStderr: true,
	})
	if err != nil {
		return -1, e.fail(ctx, err, "run a command in container %s", id)
	}
	conn, err := e.api().ExecAttach(ctx, created.ID, client.ExecAttachOptions{TTY: x.TTY, ConsoleSize: size})
	if err != nil {
		return -1, e.fail(ctx, err, "run a command in container %s", id)
	}
	if x.Started != nil {
		x.Started(func(ctx context.Context, sig syscall.Signal) error { return e.signalExec(ctx, id, created.ID, sig) })
	}
	if err := e.stream(ctx, created.ID, x, first, conn.HijackedResponse); err != nil {
		return -1, fmt.Errorf("run a command in container %s: %w", id, err)
	}
	return e.exitCode(ctx, created.ID)
}

// stream copies the command's streams until its output ends. It closes conn.
func (e *Engine) stream(ctx context.Context, execID string, x engine.Exec, size engine.Size, conn client.HijackedResponse) error {
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	defer conn.Close()
	if x.Stdin != nil {
		go func() {
			// The command may end, or close its input, before it has read everything.
			_, _ = io.Copy(conn.Conn, x.Stdin)
			_ = conn.CloseWrite()
		}()
	}
	if x.TTY && x.Resize != nil {
		ctx, cancel := context.WithCancel(ctx)
		var resizing sync.WaitGroup
		// Engines before API 1.42 ignore the size at the start, so it is sent again.
		resizing.Go(func() { x.EachSize(ctx, size, func(s engine.Size) { e.resize(ctx, execID, s) }) })
		defer resizing.Wait()
		defer cancel()
	}
	stdout, stderr := &writer{w: x.Stdout}, &writer{w: x.Stderr}
	var err error
	if x.TTY {
		_, err = io.Copy(stdout, conn.Reader)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, conn.Reader)
	}
	if written := errors.Join(stdout.err, stderr.err); written != nil {
		return fmt.Errorf("write its output: %w", written)
	}
	return e.fail(ctx, cmp.Or(err, ctx.Err()), "read its output")
}

// resize retries briefly, because the terminal exists only a moment after the
// engine has accepted the command. A wrong size does not end a command.
func (e *Engine) resize(ctx context.Context, execID string, s engine.Size) {
	for wait := time.Millisecond; wait < time.Second; wait *= 2 {
		_, err := e.api().ExecResize(ctx, execID, client.ExecResizeOptions{Height: s.Rows, Width: s.Cols})
		if err == nil || tasks.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// exitCode waits until the engine reports the command's end. The output may end
// before the command.
func (e *Engine) exitCode(ctx context.Context, execID string) (int, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		res, err := e.api().ExecInspect(ctx, execID, client.ExecInspectOptions{})
		if err != nil {
			return -1, e.fail(ctx, err, "read a command's exit code")
		}
		if !res.Running {
			return res.ExitCode, nil
		}
		if tasks.Sleep(ctx, wait) != nil {
			return -1, e.fail(ctx, ctx.Err(), "wait for a command's end")
		}
	}
}
