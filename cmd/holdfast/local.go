package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"

	"holdfast/internal/agent/process"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
)

// configEnv names the configuration file for commands that act on this host
// without an agent.
const configEnv = cli.ConfigEnv

// configFile returns the path that a user has given, or else that of the environment; "" is the
// default path.
func configFile(given string) string { return cmp.Or(given, os.Getenv(configEnv)) }

// hostConfig returns the configuration of this host. If it is invalid the command
// continues with the defaults.
func hostConfig(ctx context.Context) config.Config {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if err != nil {
		slog.Warn("the configuration cannot be used: continuing with the defaults", "error", err)
		return config.Default()
	}
	return c
}

// hostSocket returns the agent's socket by the configuration of this host. Only root can read
// the file, so other users get "" without it.
func hostSocket() string {
	c, err := config.LoadHost(context.Background(), os.Getenv(configEnv))
	if err != nil {
		return ""
	}
	return c.API.Socket
}

// openLocal connects to the engine that the configuration names.
func openLocal(ctx context.Context) (cli.Local, error) {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if errors.Is(err, fs.ErrPermission) && os.Getenv(configEnv) == "" {
		// Only root can read the file. Other users may still use the engine.
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
