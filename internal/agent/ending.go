package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/platform/linux/listenfd"
	"holdfast/internal/sessions/drain"
)

// ending is how an agent is to end.
type ending struct {
	keep bool // leave the containers to the next agent
	next bool // which follows at once, on the same sockets
}

// end makes run end. Only the first call counts, and none once run drains. Any
// goroutine.
func (a *Agent) end(how ending) (first bool) {
	a.stopOnce.Do(func() { a.stop <- how; first = true })
	return first
}

// wait until something ends the agent, and how.
func (a *Agent) wait(ctx context.Context, p *parts, failed <-chan error) (ending, error) {
	over := a.turn.Over()
	for {
		select {
		case <-ctx.Done():
			select {
			case how := <-a.stop: // it came first: who asked to keep must not lose everything to a signal
				return how, nil
			default:
				return ending{}, nil
			}
		case how := <-a.stop:
			return how, nil
		case <-over:
			over = nil
			if a.turn.Orphaned() && listenfd.Managed() {
				a.log.Warn("the agent before this one was killed: leaving the host to the one that the service manager starts")
				return ending{keep: true}, nil
			}
			a.upgrades.over()
		case err := <-p.failed:
			return ending{}, err
		case err := <-failed:
			return ending{}, err
		}
	}
}

// finishTime bounds how long requests are waited for that wait for sessions,
// while nobody can come in.
const finishTime = 3 * time.Second

// leave ends what clients see, and leaves the containers to the next agent. Where
// that follows at once, requests under way go on beside it.
func (a *Agent) leave(how ending, front *parts, l *listeners) {
	a.log.Info("leaving the containers to the next agent", "sessions", len(a.sessions.List()))
	if !how.next {
		a.notify("STOPPING=1")
	}
	if !how.next && !listenfd.Managed() {
		a.doors.keepOnly() // nobody comes who would let in who waits there
		return
	}
	l.shut()
	a.upgrades.shut()
	ctx, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	a.gateway.Finish(ctx)
	if how.next {
		a.handing, a.behind = true, front.stopBehind()
	}
}

// drainAndEnd ends an agent that no other follows.
func (a *Agent) drainAndEnd(ctx context.Context, front, p *parts) error {
	a.notify("STOPPING=1")
	a.doors.keepOnly() // they close with their servers
	ctx = context.WithoutCancel(ctx)
	report := a.drainLast(ctx, drain.Options{Budget: a.cfg.Drain.Budget, Quiet: a.cfg.Drain.Quiet}, a.opt.Step)
	if a.opt.Drained != nil {
		a.opt.Drained(report)
	}
	if !report.Clean() {
		return fmt.Errorf("%w: %d containers, %d sessions", ErrLeft, len(report.Left), report.Owned-report.Released)
	}
	// First everything stops that could claim, renew or publish.
	err := errors.Join(front.stop(), p.stop())
	a.endPools(ctx)
	return errors.Join(err, a.lease.Drop(ctx), a.dismissDeadman())
}
