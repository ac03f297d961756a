package job

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/engine"
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
		if err != nil {
			// What the container wrote last says no more: it only waits.
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
