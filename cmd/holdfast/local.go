package main

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"holdfast/internal/agent/process"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
)

// configEnv names the configuration file for commands that act on this host
// without an agent.
const configEnv = cli.ConfigEnv

// openLocal connects to the engine that the configuration names.
func openLocal(ctx context.Context) (cli.Local, error) {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if errors.Is(err, fs.ErrPermission) && os.Getenv(configEnv) == "" {
		// It is root's alone; others may use the engine all the same.
		c = config.Default()
		c.Node, err = os.Hostname()
	}
	if err != nil {
		return cli.Local{}, cli.ConfigError(err)
	}
	e, err := process.OpenEngine(ctx, c)
	if err != nil {
		return cli.Local{}, err
	}
	return cli.Local{Engine: e, Host: c.Node, Rules: c.Spinup.Slow}, nil
}
