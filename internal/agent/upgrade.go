package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
)

// Bounds of an upgrade's parts in which this agent serves.
const (
	// helloTime is how long the next agent may take to read its configuration.
	helloTime = 10 * time.Second
	// quietTime is how long is waited for boots under way, which the end of an
	// agent undoes.
	quietTime = 10 * time.Second
	quietLook = 20 * time.Millisecond
)

// Upgrade implements api.AgentService: it starts the next agent and ends this one.
// Until it returns, the upgrade can be cancelled.
func (a *Agent) Upgrade(ctx context.Context, trial time.Duration) (api.Upgrade, error) {
	if len(a.opt.Next) == 0 {
		return api.Upgrade{}, errors.New("this agent cannot be upgraded while it runs")
	}
	if os.Getpid() == 1 { // pid_namespaces(7)
		return api.Upgrade{}, holdfast.WithHint(errors.New("this agent is the first process of its container, whose end takes all others along"),
			"replace the container: holdfast agent stop --keep, then start another")
	}
	if err := a.mayUpgrade(); err != nil {
		return api.Upgrade{}, err
	}
	if err := a.upgrades.begin(); err != nil {
		return api.Upgrade{}, err
	}
	if err := a.hail(ctx, trial); err != nil {
		a.upgrades.fail(err)
		return api.Upgrade{}, holdfast.WithHint(fmt.Errorf("the upgrade failed, and the agent that is there, version %s, serves on: %w", a.opt.Version, err), holdfast.HintOf(err))
	}
	return a.upgrades.report(), nil
}

// mayUpgrade makes sure that nothing is under way that an upgrade would break. What
// begins afterwards is for whoever begins it. holdfast.ErrBusy.
func (a *Agent) mayUpgrade() error {
	for what, mu := range map[string]*sync.Mutex{"this node is being drained": &a.drainMu, "sessions are being replaced": &a.replacing} {
		if !mu.TryLock() {
			return fmt.Errorf("%s: %w", what, holdfast.ErrBusy)
		}
		mu.Unlock()
	}
	return nil
}

// hail has the next agent ready for its turn, and this one end for it.
func (a *Agent) hail(ctx context.Context, trial time.Duration) error {
	a.log.Info("upgrade: starting the program on disk", "program", a.opt.Next[0])
	next, err := handoff.Start(ctx, handoff.Options{
		Argv: a.opt.Next, Home: homeOf(a.cfg), Stdout: a.opt.Stdout, Stderr: a.opt.Stderr, Limit: helloTime,
	})
	if err != nil {
		return err
	}
	a.upgrades.prepared(next)
	a.log.Info("upgrade: the next agent is there", "version", next.Hello().Version, "pid", next.PID())
	if err := a.awaitQuiet(ctx); err != nil {
		next.Kill()
		return err
	}
	a.upgrades.step("quiet")
	a.upgrades.commit(next, trial)
	if !a.end(ending{keep: true, next: true}) {
		a.upgrades.take()
		next.Kill()
		return fmt.Errorf("the agent is ending: %w", holdfast.ErrDraining)
	}
	return nil
}

// awaitQuiet waits until nothing boots and nobody is parked, for a while: both
// are better off when this agent is done with them.
func (a *Agent) awaitQuiet(ctx context.Context) error {
	late := time.NewTimer(quietTime)
	defer late.Stop()
	tick := time.NewTicker(quietLook)
	defer tick.Stop()
	for {
		_, boots := a.sessions.Counts()
		if parked, _, _ := a.gateway.InFlight(); boots == 0 && parked == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-late.C:
			a.log.Warn("upgrade: boots that are still under way will be undone", "boots", boots)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// homeOf is what two agents must have in common of which one follows the other.
func homeOf(c config.Config) handoff.Home {
	h := handoff.Home{DataDir: c.DataDir, RunDir: c.RunDir, Socket: c.API.Socket}
	if c.NodeGiven { // else the data directory says
		h.Node = c.Node
	}
	return h
}
