package job

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// steps runs the job's steps in a primary container until one fails. That one
// did is no error.
func (x *underway) steps(ctx context.Context, index int, primary string, out output) error {
	res := Run{Index: index, Steps: []StepResult{}}
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.runs = append(x.runs, res)
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

// codeKilled is the exit code of a step that died by SIGKILL, as all in a
// container do when its init ends.
const codeKilled = 128 + 9

// How long the engine may take to see that a container has ended.
const (
	endedLook  = 50 * time.Millisecond
	endedLooks = 10
)

// ended is the error of a primary container that does not run any more, nil of
// one that does: then a failed step has failed by itself. With likely it looks
// for a while.
func (x *underway) ended(ctx context.Context, index int, primary string, likely bool) error {
	looks := 1
	if likely {
		looks = endedLooks
	}
	for ; looks > 0 && ctx.Err() == nil; looks-- {
		c, err := x.Engine.Inspect(ctx, primary)
		if err == nil && !c.Running() {
			return x.endedError(index, c)
		}
		if looks > 1 {
			time.Sleep(endedLook)
		}
	}
	return nil
}

func (x *underway) endedError(index int, c engine.Container) error {
	img := x.job.Images[0]
	err := fmt.Errorf("the container of the steps has ended, with exit code %d", c.ExitCode)
	switch {
	case c.OOMKilled:
		err = holdfast.WithHint(err, "the host had no memory left for it")
	case c.ExitCode == codeNotFound && len(img.Entrypoint)+len(img.Command) == 0:
		err = holdfast.WithHint(err, "its image has no `tail`, which is to keep it running: give the first image a command that does (command: in a job file)")
	default:
		err = holdfast.WithHint(err, "what keeps it running (command: of the first image) has to go on until it is killed")
	}
	return &ContainerError{Run: index, Name: img.Name, Err: err}
}
