package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/agent"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/gc"
)

// collector is garbage collection without an agent, as the command line knows it.
type collector struct{ *agent.GC }

func (c collector) GCPlan(ctx context.Context) (gc.Proposal, error) { return c.Plan(ctx) }

// GCRun watches what spins up for as long as it collects.
func (c collector) GCRun(ctx context.Context, told func(gc.Outcome, bool)) (gc.Cycle, error) {
	watching, cancel := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- c.Watch(watching) }()
	cy, err := c.Collect(ctx, gc.ByHand, told)
	cancel()
	return cy, errors.Join(err, <-watched)
}

func (c collector) GCStatus(ctx context.Context) (gc.Status, error) { return c.Status(ctx) }

func (c collector) GCHistory(_ context.Context, limit int) ([]gc.Cycle, error) {
	return c.History(limit)
}

// openCollector is `holdfast gc` on a host without an agent.
func openCollector(ctx context.Context, file string) (cli.Collector, func() error, error) {
	c, err := config.LoadHost(ctx, file)
	if err != nil {
		return nil, nil, usageError{err}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	g, err := agent.OpenGC(ctx, c, prometheus.NewRegistry(), log)
	if err != nil {
		return nil, nil, err
	}
	return collector{g}, g.Close, nil
}

// serveCollector is `holdfast gc serve`.
func serveCollector(ctx context.Context, s cli.GCServe) error {
	c, err := config.LoadCollector(ctx, s.Config, config.Overrides{APIListen: s.API})
	if err != nil {
		return usageError{err}
	}
	c.GC.Enabled = true
	return agent.ServeGC(ctx, c, slog.New(logHandler(c.Log, s.Stderr)), func(url string) {
		if url != "" {
			fmt.Fprintf(s.Stdout, "metrics at %s/metrics\n", url)
		}
	})
}
