package job

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/tasks"
)

// steps runs the job's steps in a primary container until one fails. A failed
// step is not an error.
func (x *underway) steps(ctx context.Context, index int, primary string, out output) (err error) {
	res := Run{Index: index, Steps: []StepResult{}}
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.runs = append(x.runs, res)
		if x.Ended != nil && err == nil {
			x.Ended(res)
		}
	}()
	for _, s := range x.job.Steps {
		if len(x.job.Steps) > 1 {
			x.tell(index, x.job.Images[0].Name, "step: "+s.Name)
		}
		begun := time.Now()
		code, err := x.step(ctx, primary, s, out)
		if err != nil || code != 0 {
			if ended := x.ended(ctx, index, primary, err != nil || code == codeKilled); ended != nil {
				return ended
			}
		}
		if err != nil {
			return fmt.Errorf("step %q: %w", s.Name, err)
		}
		res.Steps = append(res.Steps, StepResult{Name: s.Name, ExitCode: code, Took: holdfast.Millis(time.Since(begun))})
		if code != 0 {
			res.ExitCode = code
			x.tell(index, x.job.Images[0].Name, fmt.Sprintf("step failed with exit code %d: %s", code, s.Name))
			return nil
		}
	}
	return nil
}

// step runs one step and returns its exit code.
func (x *underway) step(ctx context.Context, primary string, s Step, out output) (int, error) {
	stdout := &refusal{to: out.stdout}
	e := engine.Exec{Command: s.argv(), Stdout: stdout, Stderr: out.stderr}
	if x.Attach != nil && len(x.job.Steps) == 1 && x.job.Parallelism == 1 {
		in, err := x.Attach()
		if err != nil {
			return 0, err
		}
		defer in.Release()
		e.Stdin, e.TTY, e.Resize = in.Stdin, in.TTY, in.Resize
	}
	defer out.flush()
	code, err := x.Engine.Exec(ctx, primary, e)
	if err != nil {
		return 0, err
	}
	return stdout.end(code, out.stderr)
}

// codeKilled is the exit code of a step that died by SIGKILL. All processes of a
// container die that way when its init exits.
const codeKilled = 128 + 9

// How long the engine may take to notice that a container has exited.
const (
	endedLook  = 50 * time.Millisecond
	endedLimit = 500 * time.Millisecond
	endedKnown = 5 * time.Second // if its init has ended; a busy host's engine needs more than endedLimit
)

// ended returns an error if the primary container has exited, and nil if it runs,
// which means that a failed step failed by itself. With likely set it polls for a
// while.
func (x *underway) ended(ctx context.Context, index int, primary string, likely bool) error {
	for begun := time.Now(); ; {
		c, err := x.Engine.Inspect(ctx, primary)
		if err == nil && !c.Running() {
			return x.endedError(index, c)
		}
		limit := endedLimit
		if err == nil && initEnds(c.Pid) {
			limit = endedKnown
		}
		if !likely || time.Since(begun) > limit || tasks.Sleep(ctx, endedLook) != nil {
			return nil
		}
	}
}

// initEnds reports whether a container's init has ended or is about to.
func initEnds(pid int) bool {
	s, err := proc.Host.Stat(pid)
	return err != nil || s.Exiting()
}

func (x *underway) endedError(index int, c engine.Container) error {
	img := x.job.Images[0]
	err := fmt.Errorf("the primary container has exited with code %d", c.ExitCode)
	switch {
	case c.OOMKilled:
		err = holdfast.WithHint(err, "it was killed for lack of memory")
	case c.ExitCode == codeNotFound && len(img.Entrypoint)+len(img.Command) == 0:
		err = holdfast.WithHint(err, "its image has no `tail`, which would keep it running: give the first image a command that keeps running (command: in a job file)")
	default:
		err = holdfast.WithHint(err, "the command of the first image has to keep running until it is killed")
	}
	return &ContainerError{Run: index, Name: img.Name, Err: err}
}
