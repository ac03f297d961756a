package main

import (
	"context"
	"errors"
	"os"

	"holdfast/internal/agent/jobnode"
	"holdfast/internal/control/cli"
	"holdfast/internal/hosts/job"
)

// runJobWatcher runs the process that removes a job's containers if `holdfast run` is
// killed.
func runJobWatcher(ctx context.Context, args []string) error {
	if len(args) != 1 && len(args) != 2 {
		return cli.Exit(2) // only `holdfast run` and the agent start it
	}
	if job.Released(os.Stdin) {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // a signal to all processes of a service must also remove the containers
	e, err := watchedEngine(ctx, args[:len(args)-1])
	if err != nil {
		return err
	}
	return errors.Join(job.Remove(ctx, e, args[len(args)-1]), e.Close())
}

// watchedEngine opens the engine of the agent that has started the watcher with an argument
// of its own, or that of the host's configuration.
func watchedEngine(ctx context.Context, args []string) (cli.LocalEngine, error) {
	if len(args) == 1 {
		return jobnode.OpenEngine(ctx, args[0])
	}
	local, err := openLocal(ctx)
	return local.Engine, err
}
