package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/agent/handoff"
	"holdfast/internal/platform/linux/listenfd"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/drain"
)

// End implements handoff.Agent. Only the first call has an effect, and none once Run
// drains.
func (a *Agent) End(how handoff.ShutdownMode) (first bool) {
	a.stopOnce.Do(func() { a.stop <- how; first = true })
	return first
}

// Background implements handoff.Agent.
func (a *Agent) Background() func() error { return a.behind }

// wait until something ends the agent, and how.
func (a *Agent) wait(ctx context.Context, p *tasks.Stack, failed <-chan error) (handoff.ShutdownMode, error) {
	over := a.turn.Over()
	for {
		select {
		case <-ctx.Done():
			select {
			case how := <-a.stop: // it came first: who asked to keep must not lose everything to a signal
				return how, nil
			default:
				return handoff.ShutdownMode{}, nil
			}
		case how := <-a.stop:
			return how, nil
		case <-over:
			over = nil
			if a.turn.Orphaned() && listenfd.Managed() {
				a.log.Warn("the agent before this one was killed: leaving the host to the one that the service manager starts")
				return handoff.ShutdownMode{Keep: true}, nil
			}
			a.upgrades.TrialOver()
		case err := <-p.Failed():
			return handoff.ShutdownMode{}, err
		case err := <-failed:
			return handoff.ShutdownMode{}, err
		}
	}
}

// finishTime bounds how long requests are waited for that wait for sessions,
// while nobody can come in.
const finishTime = 3 * time.Second

// leave ends what clients see, and leaves the containers to the next agent. Where
// that follows at once, requests under way go on beside it.
func (a *Agent) leave(how handoff.ShutdownMode, front *tasks.Stack, l *listeners) {
	a.log.Info("leaving the containers to the next agent", "sessions", len(a.sessions.List()))
	if !how.HandOff {
		a.notify("STOPPING=1")
	}
	if !how.HandOff && !listenfd.Managed() {
		a.listenerSet.KeepOnly() // nobody comes who would let in who waits there
		return
	}
	l.stop()
	a.upgrades.Stopped()
	ctx, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	a.gateway.Finish(ctx)
	if how.HandOff {
		a.behind = front.StopInBackground()
	}
}

// drainAndEnd ends an agent that no other follows.
func (a *Agent) drainAndEnd(ctx context.Context, front, p *tasks.Stack) error {
	a.notify("STOPPING=1")
	a.listenerSet.KeepOnly() // they close with their servers
	ctx = context.WithoutCancel(ctx)
	report := a.drainer.DrainLast(ctx, drain.Options{Budget: a.cfg.Drain.Budget, Quiet: a.cfg.Drain.Quiet}, a.opt.Step)
	if a.opt.Drained != nil {
		a.opt.Drained(report)
	}
	if !report.Clean() {
		return fmt.Errorf("%w: %d containers, %d sessions", ErrLeft, len(report.Left), report.Owned-report.Released)
	}
	// First everything stops that could claim, renew or publish.
	err := errors.Join(front.Stop(), p.Stop())
	a.endPools(ctx)
	return errors.Join(err, a.lease.Drop(ctx), a.dismissDeadman())
}
