package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/agent/gcnode"
	"holdfast/internal/control/api"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/gc"
)

// collector is garbage collection without an agent. It implements api.Collector.
type collector struct{ *gcnode.GC }

// Collect follows the spin-ups of the host while it collects.
func (c collector) Collect(ctx context.Context, why gc.Trigger, told func(gc.Outcome, bool)) (gc.Cycle, error) {
	watching, cancel := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- c.Watch(watching) }()
	cy, err := c.GC.Collect(ctx, why, told)
	cancel()
	return cy, errors.Join(err, <-watched)
}

// openCollector opens the collector of `holdfast gc` on a host without an agent.
func openCollector(ctx context.Context, file string) (api.Collector, func() error, error) {
	c, err := config.LoadHost(ctx, configFile(file))
	if err != nil {
		return nil, nil, cli.ConfigError(err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	g, err := gcnode.Open(ctx, c, prometheus.NewRegistry(), log)
	if err != nil {
		return nil, nil, err
	}
	return collector{g}, g.Close, nil
}

// serveCollector runs `holdfast gc serve`.
func serveCollector(ctx context.Context, s cli.GCServe) error {
	c, err := config.LoadCollector(ctx, configFile(s.Config), config.Overrides{APIListen: s.API})
	if err != nil {
		return cli.ConfigError(err)
	}
	c.GC.Enabled = true
	return gcnode.Serve(ctx, c, slog.New(logHandler(c.Log, s.Stderr)), func(url string) {
		if url != "" {
			fmt.Fprintf(s.Stdout, "metrics at %s/metrics\n", url)
		}
	})
}
