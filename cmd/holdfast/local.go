package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"holdfast/internal/cli"
	"holdfast/internal/config"
	"holdfast/internal/engine/docker"
	"holdfast/internal/spinup"
)

// configEnv names the configuration file for commands that act on this host
// without an agent.
const configEnv = "HOLDFAST_CONFIG"

// openLocal connects to the engine that the configuration names.
func openLocal(ctx context.Context) (cli.Local, error) {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if errors.Is(err, fs.ErrPermission) && os.Getenv(configEnv) == "" {
		// It is root's alone; others may use the engine all the same.
		c = config.Default()
		c.Node, err = os.Hostname()
	}
	if err != nil {
		return cli.Local{}, usageError{err}
	}
	e, err := docker.Open(ctx, docker.Config{Host: c.Engine.Host})
	if err != nil {
		return cli.Local{}, err
	}
	return cli.Local{
		Engine: e, Host: c.Node, Rules: c.Spinup.Slow,
		Keeper: fileRecorder{path: filepath.Join(c.DataDir, "spinup.db"), keep: c.Spinup.Keep},
	}, nil
}

// fileRecorder keeps records in the file of the agent's data directory.
type fileRecorder struct {
	path string
	keep spinup.Keep
}

func (f fileRecorder) Record(_ context.Context, r spinup.Record) (err error) {
	s, err := spinup.OpenStore(f.path, f.keep, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	return errors.Join(s.Append(r), s.Close())
}
