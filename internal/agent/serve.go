package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"holdfast/internal/agent/handoff"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/linux/listenfd"
)

// Bounds of an upgrade's parts in which nobody serves, or the next agent does.
const (
	// takeTime is how long the next agent may take from its turn to serving.
	takeTime = time.Minute
	// tellTime is how long a service manager may take to hear of it.
	tellTime = 5 * time.Second
	// againTime is between two tries of this process's agent to serve again.
	againTime = time.Second
)

// Serve runs a node's agent until it ends: by itself, because ctx is done, which
// drains, or because keep says so, which leaves the containers to the next agent.
// turn is this process's place after another agent's, if there is one. When
// another agent is to follow, Serve ends once that one has served for a while,
// and runs an agent again if it has not. Errors are as those of an agent's end:
// ErrLeft, or why it could not start or go on.
func Serve(ctx context.Context, keep <-chan os.Signal, turn *handoff.Turn, cfg config.Config, opt Options) error {
	sockets, note, err := takeSockets(ctx, turn, cfg, opt)
	if err != nil {
		return err
	}
	d := newDoors(sockets, opt.Log)
	defer d.close()
	u, err := newUpgrades(opt.Version, note, opt.Log)
	if err != nil {
		return err
	}
	s := &service{keep: keep, cfg: cfg, opt: opt, doors: d, upgrades: u}
	behind, err := s.runUntilHandedOver(ctx, turn)
	turn.Fail(err)
	return errors.Join(err, behind())
}

// takeSockets gets the sockets that somebody has kept for this agent: the one
// before it, or a service manager.
func takeSockets(ctx context.Context, turn *handoff.Turn, cfg config.Config, opt Options) ([]*listenfd.Socket, []byte, error) {
	if turn != nil {
		return turn.Take(ctx, opt.Version, homeOf(cfg))
	}
	sockets, skipped, err := listenfd.FromEnvironment()
	if err != nil {
		return nil, nil, fmt.Errorf("sockets of the service manager: %w", err)
	}
	if len(skipped) > 0 {
		opt.Log.Warn("some of what the service manager passes does not listen", "names", skipped)
	}
	return sockets, nil, nil
}

// service is the agents of one process, one after the other.
type service struct {
	keep     <-chan os.Signal
	cfg      config.Config
	opt      Options
	doors    *doors
	upgrades *upgrades
}

// runUntilHandedOver runs agents until one has ended for good. behind waits for
// what is still under way of it.
func (s *service) runUntilHandedOver(ctx context.Context, turn *handoff.Turn) (behind func() error, err error) {
	behind = func() error { return nil }
	for {
		a := newAgent(s.cfg, s.opt, s.doors, s.upgrades)
		a.turn = turn
		err := s.run(ctx, a)
		next, trial := s.upgrades.take()
		switch {
		case next != nil && a.handing:
			behind = a.behind
			if err != nil {
				s.opt.Log.Warn("the agent did not end well; the next one takes over all the same", "err", err)
			}
		case next != nil: // something else ended it first
			next.Kill()
			return behind, err
		case s.mayServeAgain(ctx, err):
			s.opt.Log.Error("the agent could not start again after an upgrade that failed; trying on", "err", err)
			continue
		default:
			return behind, err
		}
		var over *handedOver
		switch err := s.handOver(ctx, next, trial); {
		case err == nil:
			return behind, nil
		case errors.As(err, &over) && over.code == 0:
			return behind, nil
		case errors.As(err, &over):
			return behind, err
		default:
			next.Kill()
			s.upgrades.fail(err)
			turn = nil // it is long over
		}
	}
}

// run is one agent's life.
func (s *service) run(ctx context.Context, a *Agent) error {
	ended := make(chan struct{})
	var listening sync.WaitGroup
	defer listening.Wait()
	defer close(ended)
	listening.Go(func() {
		select {
		case <-s.keep:
			a.end(ending{keep: true})
		case <-ended:
		}
	})
	return a.run(ctx)
}

// mayServeAgain waits a moment before this process's agent is run again that
// could not start after an upgrade had failed: no host is left without one. It is
// false where that is not the case.
func (s *service) mayServeAgain(ctx context.Context, err error) bool {
	if err == nil || !s.upgrades.goingBack() {
		return false
	}
	select {
	case <-time.After(againTime):
		return true
	case <-s.keep:
	case <-ctx.Done():
	}
	return false
}

// handedOver says how the next agent ended that was told to.
type handedOver struct{ code int }

func (h *handedOver) Error() string {
	return fmt.Sprintf("the agent that this one had handed over to was told to end, and ended with exit code %d", h.code)
}

// ExitCode is the next agent's, which is this process's then.
func (h *handedOver) ExitCode() int { return h.code }

// handOver gives the next agent its turn, and returns nil when it has stood its
// trial: then this process has nothing to do any more. A *handedOver says that it
// was told to end, and has; any other error that it cannot serve.
func (s *service) handOver(ctx context.Context, next *handoff.Next, trial time.Duration) error {
	s.upgrades.step("finish")
	note, err := s.upgrades.note()
	if err != nil {
		return err
	}
	if err := next.Go(s.doors.list(), note); err != nil {
		return err
	}
	told, release := s.passOn(ctx, next)
	defer release()
	for _, stage := range []struct {
		until handoff.Event
		limit time.Duration
	}{{handoff.Held, s.holdTime()}, {handoff.Up, takeTime}} {
		// Neither agent publishes meanwhile; each stage is bounded.
		notify(s.opt.Log, stillAlive)
		if err := awaitEvent(told, next, stage.until, stage.limit); err != nil {
			return err
		}
	}
	if err := standBy(told, next, trial); err != nil {
		return err
	}
	if err := listenfd.HandOver(next.PID(), tellTime); err != nil {
		s.opt.Log.Warn("the service manager may take the end of this process for the service's", "err", err)
	}
	return next.Over()
}

// holdTime is how long the next agent may take to renew the lease. In a store
// that nodes share, what is left of the fence has to do for this agent to come
// back in.
func (s *service) holdTime() time.Duration {
	if len(s.cfg.Store.Endpoints) == 0 {
		return takeTime
	}
	return min(takeTime, (s.cfg.Store.Fence-s.cfg.Store.Renew)*3/5)
}

// errTold is why a wait ends when this process is told to end.
var errTold = errors.New("told to end")

// passOn passes on to the next agent what this process is told: it is that one's
// by now. told is done then.
func (s *service) passOn(ctx context.Context, next *handoff.Next) (told context.Context, release func()) {
	told, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.keep:
			next.Signal(syscall.SIGUSR2)
		case <-ctx.Done():
			next.Signal(syscall.SIGTERM)
		case <-told.Done():
			return
		}
		cancel(errTold)
	}()
	return told, func() { cancel(nil); <-ended }
}

// awaitEvent waits until the next agent is that far.
func awaitEvent(told context.Context, next *handoff.Next, until handoff.Event, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(told, limit, fmt.Errorf("the next agent did not say %q within %v", until, limit))
	defer cancel()
	for {
		e, err := next.Await(ctx)
		switch {
		case ctx.Err() != nil:
			return giveUp(ctx, next)
		case err != nil:
			return err
		case e == handoff.Ending:
			return await(next)
		case e == until:
			return nil
		}
	}
}

// standBy returns nil when the next agent has served for the time of its trial.
func standBy(told context.Context, next *handoff.Next, trial time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(told, trial, nil)
	defer cancel()
	for {
		e, err := next.Await(ctx)
		switch {
		case told.Err() != nil:
			return giveUp(told, next)
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("in its trial of %v: %w", trial, err)
		case e == handoff.Ending:
			return await(next)
		}
	}
}

// giveUp is for a wait that has ended before what it waited for.
func giveUp(ctx context.Context, next *handoff.Next) error {
	if err := context.Cause(ctx); !errors.Is(err, errTold) {
		return err
	}
	return await(next)
}

// await waits for the end of a next agent that was told to end.
func await(next *handoff.Next) error {
	<-next.Ended()
	return &handedOver{next.ExitCode()}
}
