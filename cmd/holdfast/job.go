package main

import (
	"context"
	"errors"
	"os"

	"holdfast/internal/control/cli"
	"holdfast/internal/hosts/job"
)

// runJobWatcher runs the process that removes a job's containers if `holdfast run` is
// killed.
func runJobWatcher(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return cli.Exit(2) // only `holdfast run` starts it
	}
	if job.Released(os.Stdin) {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // a signal to all processes of a service must also remove the containers
	local, err := openLocal(ctx)
	if err != nil {
		return err
	}
	return errors.Join(job.Remove(ctx, local.Engine, args[0]), local.Engine.Close())
}
