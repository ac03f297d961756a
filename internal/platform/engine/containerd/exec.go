package containerd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// The exit codes of a command that could not be run.
const (
	cannotRun = 126
	notFound  = 127
)

// Exec runs a command in a running container and returns its exit code: 126 or 127 if
// it could not be run. When ctx ends first, the command is killed. A Read of x.Stdin
// may still block when Exec returns.
func (e *Engine) Exec(ctx context.Context, id string, x engine.Exec) (int, error) {
	ctx = e.in(ctx)
	raw, err := e.find(ctx, id)
	if err != nil {
		return -1, e.fail(ctx, err, "run a command in container %s", id)
	}
	size, err := x.FirstSize(ctx)
	if err != nil {
		return -1, fmt.Errorf("run a command in container %s: %w", id, err)
	}
	run := command{e: e, container: raw, x: x, size: size, stdout: &writer{w: x.Stdout}, stderr: &writer{w: x.Stderr}}
	code, err := run.run(ctx)
	if written := errors.Join(run.stdout.failed(), run.stderr.failed()); written != nil {
		return -1, fmt.Errorf("run a command in container %s: write its output: %w", id, written)
	}
	if err != nil {
		return -1, e.fail(ctx, err, "run a command in container %s", id)
	}
	return code, nil
}

// command is a running command.
type command struct {
	e              *Engine
	container      containers.Container
	x              engine.Exec
	size           engine.Size
	id             string
	stdout, stderr *writer
}

func (c *command) run(ctx context.Context) (int, error) {
	process, err := c.process()
	if err != nil {
		return -1, err
	}
	c.id = rand.Text()
	input := newInput(c.x.Stdin)
	streams, err := cio.NewCreator(c.streams(input)...)(c.id)
	if err != nil {
		return -1, fmt.Errorf("its streams: %w", err)
	}
	defer streams.Close()
	defer streams.Cancel()
	at := streams.Config()
	api := c.e.api.TaskService()
	if _, err := api.Exec(ctx, &taskapi.ExecProcessRequest{
		ContainerID: c.container.ID, ExecID: c.id, Terminal: c.x.TTY, Stdin: at.Stdin, Stdout: at.Stdout, Stderr: at.Stderr, Spec: process,
	}); err != nil {
		return -1, errgrpc.ToNative(err)
	}
	code, err := c.await(ctx, input, streams)
	// The shim has to be told of the end, whether the caller still waits or not.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	if err != nil {
		_, _ = api.Kill(clean, &taskapi.KillRequest{ContainerID: c.container.ID, ExecID: c.id, Signal: uint32(syscall.SIGKILL)})
		_, _ = api.Wait(clean, &taskapi.WaitRequest{ContainerID: c.container.ID, ExecID: c.id})
		streams.Cancel()
		streams.Close()
	}
	// This closes the shim's side of the streams after all output.
	_, deleted := api.DeleteProcess(clean, &taskapi.DeleteProcessRequest{ContainerID: c.container.ID, ExecID: c.id})
	if err != nil {
		return code, err
	}
	if deleted = errgrpc.ToNative(deleted); deleted != nil && !isGone(deleted) {
		return -1, deleted
	}
	streams.Wait()
	return code, nil
}

// await starts the command and waits for its end.
func (c *command) await(ctx context.Context, input *input, streams cio.IO) (int, error) {
	api := c.e.api.TaskService()
	if _, err := api.Start(ctx, &taskapi.StartRequest{ContainerID: c.container.ID, ExecID: c.id}); err != nil {
		err = errgrpc.ToNative(err)
		if code := codeOfExec(err); code != 0 {
			c.stderr.note(err)
			streams.Cancel()
			return code, nil
		}
		return -1, err
	}
	if c.x.Started != nil {
		c.x.Started(c.signal)
	}
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	if c.x.TTY && c.x.Resize != nil {
		beside.Go(func() {
			c.x.EachSize(ctx, c.size, func(s engine.Size) {
				// A wrong size does not end a command.
				_, _ = api.ResizePty(ctx, &taskapi.ResizePtyRequest{ContainerID: c.container.ID, ExecID: c.id, Width: uint32(s.Cols), Height: uint32(s.Rows)})
			})
		})
	}
	if c.x.Stdin != nil {
		beside.Go(func() {
			select {
			case <-input.end:
				// The command may have ended before.
				_, _ = api.CloseIO(ctx, &taskapi.CloseIORequest{ContainerID: c.container.ID, ExecID: c.id, Stdin: true})
			case <-ctx.Done():
			}
		})
	}
	return c.wait(ctx)
}

// wait waits for the command's end. The shim keeps the streams while containerd restarts,
// so wait asks again.
func (c *command) wait(ctx context.Context) (int, error) {
	for {
		res, err := c.e.api.TaskService().Wait(ctx, &taskapi.WaitRequest{ContainerID: c.container.ID, ExecID: c.id})
		if err == nil {
			return int(res.ExitStatus), nil
		}
		if err = errgrpc.ToNative(err); !isDown(err) || tasks.Sleep(ctx, waitAgain) != nil {
			return -1, err
		}
	}
}

// waitAgain is the pause before a command's end is awaited again.
const waitAgain = 100 * time.Millisecond

// signal implements engine.Signaler.
func (c *command) signal(ctx context.Context, sig syscall.Signal) error {
	_, err := c.e.api.TaskService().Kill(c.e.in(ctx), &taskapi.KillRequest{ContainerID: c.container.ID, ExecID: c.id, Signal: uint32(sig)})
	if err = errgrpc.ToNative(err); isGone(err) || errdefs.IsFailedPrecondition(err) {
		return fmt.Errorf("the command has ended: %w", holdfast.ErrNotFound)
	}
	return c.e.fail(ctx, err, "signal a command in container %s", c.container.ID)
}

// codeOfExec is the exit code for a command that the runtime could not run, 0 for
// other errors.
func codeOfExec(err error) int {
	text := err.Error()
	switch {
	case !strings.Contains(text, "exec failed"), isDown(err):
		return 0
	case strings.Contains(text, "no such file or directory"), strings.Contains(text, "executable file not found"):
		return notFound
	case strings.Contains(text, "permission denied"):
		return cannotRun
	}
	return 0
}

// process describes the command: the container's process with another command line.
func (c *command) process() (*anypb.Any, error) {
	spec, err := specOf(c.container)
	if err != nil {
		return nil, err
	}
	p := *spec.Process
	p.Args, p.Terminal, p.Cwd = c.x.Command, c.x.TTY, cmp.Or(c.x.Dir, p.Cwd)
	if c.x.TTY {
		p.Env = append(p.Env, "TERM=xterm")
	}
	p.Env = withEnv(p.Env, c.x.Env)
	if c.x.User != "" {
		if _, err := fmt.Sscanf(c.x.User, "%d:%d", &p.User.UID, &p.User.GID); err != nil {
			return nil, fmt.Errorf("the user %q: %w", c.x.User, err)
		}
		p.User.AdditionalGids, p.User.Username = nil, ""
	}
	text, err := typeurl.MarshalAny(&p)
	if err != nil {
		return nil, err
	}
	return typeurl.MarshalProto(text), nil
}

// withEnv adds variables to an environment, in place of those with their names.
func withEnv(env, more []string) []string {
	env = slices.Clone(env)
	for _, v := range more {
		name, _, _ := strings.Cut(v, "=")
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, v)
	}
	return env
}

func (c *command) streams(in *input) []cio.Opt {
	var stdin io.Reader
	if c.x.Stdin != nil {
		stdin = in
	}
	options := []cio.Opt{cio.WithStreams(stdin, c.stdout, c.stderr), cio.WithFIFODir(filepath.Join(recordOf(c.container).Dir, "exec"))}
	if c.x.TTY {
		options = append(options, cio.WithTerminal)
	}
	return options
}

// input reports its end.
type input struct {
	r    io.Reader
	once sync.Once
	end  chan struct{}
}

func newInput(r io.Reader) *input { return &input{r: r, end: make(chan struct{})} }

func (i *input) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	if err != nil {
		i.once.Do(func() { close(i.end) })
	}
	return n, err
}

// writer remembers the error of w, to distinguish a caller that stops reading from an
// engine that stops. After an error it discards output, so that the command goes on.
// With a nil w it discards everything.
type writer struct {
	w   io.Writer
	mu  sync.Mutex
	err error
}

func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.w == nil || w.err != nil {
		return len(p), nil
	}
	_, w.err = w.w.Write(p)
	return len(p), nil
}

func (w *writer) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// note writes the reason why a command could not be run.
func (w *writer) note(err error) { fmt.Fprintln(w, err) }
