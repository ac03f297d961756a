package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"holdfast"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
)

// Serve runs the agent of a node until it ends. The end of ctx drains the node. A signal
// from keep leaves the containers to the next agent. turn is this process's place after
// another agent, nil for none. After an upgrade Serve returns when the next agent has
// passed its trial; if that fails, Serve runs an agent again. An error wraps ErrLeft, or
// describes why the agent could not start or continue.
func Serve(ctx context.Context, keep <-chan os.Signal, turn *handoff.Turn, cfg config.Config, opt Options) error {
	s := handoff.Service{
		Version: opt.Version, Home: homeOf(cfg), Keep: keep, Log: opt.Log,
		New: func(turn *handoff.Turn, l *handoff.Listeners, c *handoff.Connections, u *handoff.Upgrades) handoff.Agent {
			a := newAgent(cfg, opt, l, u)
			a.turn, a.connections = turn, c
			return a
		},
	}
	if len(cfg.Store.Endpoints) > 0 {
		// If the next agent fails, this one has to renew the lease within what is
		// left of the fence.
		s.HoldLimit = (cfg.Store.Fence - cfg.Store.Renew) * 3 / 5
	}
	return s.Serve(ctx, turn)
}

const (
	// idleLimit is how long an upgrade waits for boots, which the end of an agent
	// undoes. This agent serves meanwhile. A boot may take this long on a busy host.
	idleLimit = time.Minute
	idlePoll  = 20 * time.Millisecond
)

// Upgrade implements api.AgentService: it starts the next agent and ends this one.
// Until it returns, the upgrade can be cancelled.
func (a *Agent) Upgrade(ctx context.Context, trial time.Duration) (api.Upgrade, error) {
	if len(a.opt.Next) == 0 {
		return api.Upgrade{}, errors.New("this agent cannot be upgraded while it runs")
	}
	if os.Getpid() == 1 { // pid_namespaces(7)
		return api.Upgrade{}, holdfast.WithHint(errors.New("this agent is process 1 of its container: its exit ends all other processes"),
			"replace the container: holdfast agent stop --keep, then start another")
	}
	if err := a.mayUpgrade(); err != nil {
		return api.Upgrade{}, err
	}
	return a.upgrades.Begin(ctx, handoff.Upgrade{
		Argv: a.opt.Next, Home: homeOf(a.cfg), Stdout: a.opt.Stdout, Stderr: a.opt.Stderr, Trial: trial,
		AwaitIdle: a.awaitIdle, End: a.End, Log: a.log,
	})
}

// mayUpgrade returns holdfast.ErrBusy while a drain or a replacement of sessions is
// under way, which an upgrade would interrupt.
func (a *Agent) mayUpgrade() error {
	if a.drainer.Busy() {
		return fmt.Errorf("this node is being drained: %w", holdfast.ErrBusy)
	}
	if !a.replacing.TryLock() {
		return fmt.Errorf("sessions are being replaced: %w", holdfast.ErrBusy)
	}
	a.replacing.Unlock()
	return nil
}

// awaitIdle waits until no session boots and no request is parked, for idleLimit at
// most: the end of this agent undoes boots and delays parked requests.
func (a *Agent) awaitIdle(ctx context.Context) error {
	late := time.NewTimer(idleLimit)
	defer late.Stop()
	tick := time.NewTicker(idlePoll)
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

// homeOf returns what two agents of a handoff must have in common.
func homeOf(c config.Config) handoff.Home {
	h := handoff.Home{DataDir: c.DataDir, RunDir: c.RunDir, Socket: c.API.Socket}
	if c.NodeGiven { // else the id is in the data directory
		h.Node = c.Node
	}
	return h
}
