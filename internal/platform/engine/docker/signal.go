package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/moby/moby/client"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/tasks"
)

// signalExec sends a signal to the process of an exec. The engine has no call for it, so
// the process is found by its pid on this host. The pid belongs to the command if the
// engine still calls the command running after the process was opened.
func (e *Engine) signalExec(ctx context.Context, container, execID string, sig syscall.Signal) error {
	pid, err := e.execPid(ctx, execID)
	if err != nil {
		return err
	}
	p, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrGone) {
		return hasEnded()
	} else if err != nil {
		return fmt.Errorf("signal a command: %w", err)
	}
	defer p.Close()
	if _, err := e.execPid(ctx, execID); err != nil {
		return err
	}
	if err := e.ofContainer(ctx, container, pid); err != nil {
		return err
	}
	if err := p.Signal(sig); errors.Is(err, pidfd.ErrGone) {
		return hasEnded()
	} else if err != nil {
		return fmt.Errorf("signal a command: %w", err)
	}
	return nil
}

func hasEnded() error { return fmt.Errorf("the command has ended: %w", holdfast.ErrNotFound) }

// execPid returns the pid of a running command. The engine accepts a command a moment
// before its process exists, so execPid waits briefly.
func (e *Engine) execPid(ctx context.Context, execID string) (int, error) {
	for wait := time.Millisecond; ; wait *= 2 {
		res, err := e.api().ExecInspect(ctx, execID, client.ExecInspectOptions{})
		switch {
		case err != nil:
			return 0, e.fail(ctx, err, "find a command's process")
		case res.Running && res.PID > 0:
			return res.PID, nil
		case res.PID > 0, wait > time.Second, tasks.Sleep(ctx, wait) != nil:
			return 0, hasEnded()
		}
	}
}

// ofContainer returns engine.ErrUnsupported for a process that is outside the container's
// pid namespace: a runtime that is not a kernel's container, such as gVisor, has only a
// proxy of the command on the host.
func (e *Engine) ofContainer(ctx context.Context, container string, pid int) error {
	c, err := e.Inspect(ctx, container)
	if err != nil {
		return err
	}
	own, err1 := os.Readlink("/proc/" + strconv.Itoa(c.Pid) + "/ns/pid")
	got, err2 := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	if err := errors.Join(err1, err2); err != nil {
		return hasEnded()
	}
	host, err := os.Readlink("/proc/self/ns/pid")
	if err == nil && (own != got || got == host && c.PIDMode != "host") {
		return fmt.Errorf("a signal to a command under this container's runtime: %w", engine.ErrUnsupported)
	}
	return err
}
