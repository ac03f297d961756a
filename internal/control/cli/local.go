package cli

import (
	"context"
	"fmt"

	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// Local is what commands need to use this host's engine without an agent.
type Local struct {
	Engine LocalEngine
	Host   string // name of this host in the records of spin-ups
	Rules  spinup.Rules

	recorder *Recorder
	close    func()
}

// LocalEngine is an engine with the functions for jobs.
type LocalEngine interface {
	engine.Engine
	job.Engine
}

// openLocal connects to this host's engine. The caller closes it.
func (a *app) openLocal(ctx context.Context) (Local, error) {
	r, err := a.recorder()
	if err != nil {
		return Local{}, err
	}
	l, err := a.deps.OpenLocal(ctx)
	if err != nil {
		r.Close()
		return Local{}, err
	}
	l.recorder = r
	l.close = func() {
		r.Close()
		_ = l.Engine.Close() // the command has finished
	}
	return l, nil
}

// causeCode returns the exit code of a failed spin-up.
func causeCode(err error) int {
	switch spinup.CauseOf(err) {
	case spinup.BadName:
		return exitUsage
	case spinup.NoImage:
		return exitNotFound
	}
	return exitCode(err)
}

// keep records the measurements, also of an interrupted command. If they cannot be kept
// it prints a warning: the command has not failed.
func (a *app) keep(ctx context.Context, r *Recorder, records []spinup.Record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
	defer cancel()
	if err := r.Record(ctx, records...); err != nil {
		fmt.Fprintf(a.ui.err, "warning: not recorded: %s\n", clean(err.Error()))
	}
}
