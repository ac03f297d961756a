package session

import (
	"context"
	"errors"
	"fmt"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
)

// step runs an init step to its end. Its container has been created.
func (b *attempt) step(ctx context.Context, s Step) error {
	phase := "init"
	if s.RestoresDisk {
		phase = "disk"
	}
	return b.phase(phase, func() error {
		running, cancel := context.WithTimeout(ctx, s.Timeout)
		defer cancel()
		err := b.runStep(running)
		if err == nil {
			return nil
		}
		if running.Err() != nil && ctx.Err() == nil {
			err = holdfast.WithHint(fmt.Errorf("not done after %v", s.Timeout), "raise the step's timeout if it needs more time")
		}
		return fmt.Errorf("init step %s: %w", s.Name, err)
	})
}

func (b *attempt) runStep(ctx context.Context) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	b.endSpinup(ctx, nil) // the spin-up ends with the start; the step's result is not part of it
	_, err := b.open(ctx)
	if err == nil {
		err = b.joined()
	}
	if err != nil && !errors.Is(err, errDied) && (b.target == nil || !b.target.Init().Exited()) {
		return err
	}
	code, err := b.wait(ctx)
	if err != nil {
		return err
	}
	if code != 0 {
		c, err := b.inspect(ctx)
		if err != nil {
			c.ID, c.ExitCode = b.container, code // nothing else is known about it
		}
		return b.whyEnded(ctx, c, "")
	}
	return b.discardContainer(ctx)
}

// wait returns the container's exit code. If the answer is lost, it asks again.
func (b *attempt) wait(ctx context.Context) (int, error) {
	for {
		code, err := b.m.deps.Engine.Wait(ctx, b.container)
		if err == nil || errors.Is(err, holdfast.ErrNotFound) {
			return code, err
		}
		b.m.log.Debug("waiting for an init step (will be tried again)", "container", b.spec.Name, "err", err)
		if tasks.Sleep(ctx, 10*firstPause) != nil {
			return 0, err
		}
	}
}

// discardContainer ensures that a container that exited is dead, and closes its
// target. Other processes in its cgroup are killed, because the next container must
// not run beside them.
func (b *attempt) discardContainer(ctx context.Context) error {
	if b.target != nil {
		ctx, cancel := context.WithTimeout(ctx, killTimeout)
		defer cancel()
		report := b.m.deps.Killer.Kill(ctx, []*kill.Target{b.target})
		if len(report.Left) > 0 {
			return fmt.Errorf("it has ended, and cannot be seen dead: %s", report.Left[0].Reason)
		}
		b.target.Close()
	}
	b.m.dropNetwork(b.e)
	b.m.deps.Deadman.Forget(b.container)
	b.m.remove(b.container)
	b.spec, b.container, b.target = engine.Spec{}, "", nil
	return nil
}
