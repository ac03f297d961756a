package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/agent"
	"holdfast/internal/cli"
	"holdfast/internal/config"
	"holdfast/internal/gc"
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
func serveCollector(ctx context.Context, file string, stderr io.Writer) error {
	c, err := config.LoadHost(ctx, file)
	if err != nil {
		return usageError{err}
	}
	c.GC.Enabled = true
	g, err := agent.OpenGC(ctx, c, prometheus.NewRegistry(), slog.New(logHandler(c.Log, stderr)))
	if err != nil {
		return err
	}
	return errors.Join(g.Serve(ctx), g.Close())
}
