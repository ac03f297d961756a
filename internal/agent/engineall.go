package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/drain"
)

// DrainEngine kills every container of the engine on a host without a running agent, by
// the same steps as an agent's drain without sessions. guard is the command line of a
// guardian process.
func DrainEngine(ctx context.Context, c config.Config, guard []string, q api.DrainRequest, step func(holdfast.Step), log *slog.Logger) (_ holdfast.DrainReport, err error) {
	a := newAgent(c, Options{Log: log, Guardian: guard}, nil, nil)
	if err := os.MkdirAll(c.RunDir, 0o700); err != nil {
		return holdfast.DrainReport{}, err
	}
	if _, _, err := a.openEngine(ctx); err != nil {
		return holdfast.DrainReport{}, err
	}
	defer a.engine.Close()
	p := tasks.NewStack()
	defer func() { err = errors.Join(err, p.Stop()) }()
	if err := a.startGuardian(p); err != nil {
		return holdfast.DrainReport{}, err
	}
	node, err := os.Hostname()
	if err != nil {
		return holdfast.DrainReport{}, err
	}
	n := &drain.Host{NodeID: holdfast.NodeID(node), Engine: a.engine, Opener: a.opener, Killer: a.killer, Pausing: a.pausing}
	q.EngineAll = true
	return drain.Run(ctx, n, drainOptions(c.Drain, q), step), nil
}

// drainOptions returns the configured options, with those of a request in their place.
func drainOptions(c config.Drain, q api.DrainRequest) drain.Options {
	o := drain.Options{Budget: c.Budget, PauseEngine: c.PauseEngine, All: q.EngineAll}
	if q.Budget > 0 {
		o.Budget = min(time.Duration(q.Budget), api.MaxDrainBudget)
	}
	if q.PauseEngine != nil {
		o.PauseEngine = *q.PauseEngine
	}
	return o
}
