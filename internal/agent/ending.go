package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/agent/handoff"
	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/platform/linux/listenfd"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/deadman"
	"holdfast/internal/sessions/drain"
)

// End implements handoff.Agent. Only the first call has an effect, and none once Run
// drains.
func (a *Agent) End(how handoff.ShutdownMode) (first bool) {
	a.stopOnce.Do(func() { a.stop <- how; first = true })
	return first
}

// Background implements handoff.Agent.
func (a *Agent) Background() func() error { return a.background }

// Connections implements handoff.Agent.
func (a *Agent) Connections() []connfd.Conn { return a.left }

// takeConnections serves the open connections of the agent before this one, until ctx is done.
func (a *Agent) takeConnections(ctx context.Context) error {
	for {
		select {
		case <-a.connections.Arrived():
			a.upgrades.TookOver(a.gateway.Import(ctx, a.connections.Take()))
		case <-ctx.Done():
			return nil
		}
	}
}

// wait blocks until the agent has to end, and returns the shutdown mode.
func (a *Agent) wait(ctx context.Context, p *tasks.Stack) (handoff.ShutdownMode, error) {
	over := a.turn.Over()
	var storeFailed <-chan struct{}
	if a.embedded != nil {
		storeFailed = a.embedded.Failed()
	}
	for {
		select {
		case <-ctx.Done():
			select {
			// A stop request that arrived before the signal wins: with keep set, draining
			// would kill containers that the operator asked to keep.
			case how := <-a.stop:
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
		case <-storeFailed:
			return handoff.ShutdownMode{}, a.embedded.Err()
		}
	}
}

// finishTime bounds the wait for requests that are parked. New requests are not accepted
// meanwhile.
const finishTime = 3 * time.Second

// leave ends the listeners and leaves the containers to the next agent. At a handoff,
// requests under way continue beside the next agent.
func (a *Agent) leave(how handoff.ShutdownMode, front *tasks.Stack, l *listeners) {
	a.log.Info("leaving the containers to the next agent", "sessions", len(a.sessions.List()))
	if !how.HandOff {
		a.notify("STOPPING=1")
	}
	if !how.HandOff && !listenfd.Managed() {
		// Without a next agent or a service manager, no process would accept the queued
		// connections.
		a.listenerSet.KeepOnly()
		return
	}
	l.stop()
	a.upgrades.Stopped()
	ctx, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	a.gateway.Finish(ctx)
	if how.Connections {
		a.left = a.gateway.Export()
	}
	if how.HandOff {
		a.background = front.StopInBackground()
	}
}

// drainAndEnd drains the node and ends the agent, for a shutdown without a next agent.
func (a *Agent) drainAndEnd(ctx context.Context, front, p *tasks.Stack) error {
	a.notify("STOPPING=1")
	a.listenerSet.KeepOnly() // they close with their servers
	ctx = context.WithoutCancel(ctx)
	report := a.drainer.DrainLast(ctx, drain.Options{Budget: a.cfg.Drain.Budget, PauseEngine: a.cfg.Drain.PauseEngine}, a.opt.Step)
	if a.opt.Drained != nil {
		a.opt.Drained(report)
	}
	if !report.Clean() {
		return fmt.Errorf("%w: %d containers, %d sessions", ErrLeft, len(report.Left), report.Owned-report.Released)
	}
	// First stop all tasks that could claim, renew or publish.
	err := errors.Join(front.Stop(), p.Stop())
	a.commands.Leave(ctx)
	a.endPools(ctx)
	err = errors.Join(err, a.lease.Drop(ctx))
	if a.deadman == nil {
		return err
	}
	return errors.Join(err, deadman.Dismiss(ctx, a.deadman.StandDown, a.endPools, a.log))
}
