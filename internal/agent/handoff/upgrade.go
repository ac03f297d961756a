package handoff

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// helloLimit is how long the next agent may take to read its configuration.
const helloLimit = 10 * time.Second

// Upgrade starts the next agent and ends the running one.
type Upgrade struct {
	Argv           []string // the program of the next agent and its arguments
	Home           Home
	Stdout, Stderr io.Writer
	Trial          time.Duration // how long the next agent has to serve
	// AwaitIdle waits until the end of the running agent disturbs as little as
	// possible.
	AwaitIdle func(ctx context.Context) error
	// End ends the running agent, as Agent.End does.
	End func(ShutdownMode) bool
	Log *slog.Logger
}

// Begin does the part of u during which this agent still serves. The upgrade can be
// cancelled until Begin returns; Service does the rest. Errors: holdfast.ErrBusy while
// another upgrade is in progress, and holdfast.ErrDraining if the agent is ending.
func (r *Upgrades) Begin(ctx context.Context, u Upgrade) (api.Upgrade, error) {
	if err := r.begin(); err != nil {
		return api.Upgrade{}, err
	}
	if err := r.start(ctx, u); err != nil {
		r.fail(err)
		return api.Upgrade{}, holdfast.WithHint(fmt.Errorf("the upgrade failed; the running agent, version %s, continues to serve: %w", r.version, err), holdfast.HintOf(err))
	}
	return r.Report(), nil
}

func (r *Upgrades) start(ctx context.Context, u Upgrade) error {
	u.Log.Info("upgrade: starting the program on disk", "program", u.Argv[0])
	next, err := Start(ctx, Options{Argv: u.Argv, Home: u.Home, Stdout: u.Stdout, Stderr: u.Stderr, Limit: helloLimit})
	if err != nil {
		return err
	}
	r.prepared(next)
	u.Log.Info("upgrade: the next agent has started", "version", next.Hello().Version, "pid", next.PID())
	if err := u.AwaitIdle(ctx); err != nil {
		next.Kill()
		return err
	}
	r.Step("idle")
	r.commit(next, u.Trial)
	if !u.End(ShutdownMode{Keep: true, HandOff: true, Connections: next.Hello().Connections}) {
		r.take()
		next.Kill()
		return fmt.Errorf("the agent is ending: %w", holdfast.ErrDraining)
	}
	return nil
}
