package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/sdnotify"
)

// registry is where an agent's figures are registered, and read at a scrape.
type registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// newRegistry has the figures of every process.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// ServeGC collects until ctx is done, on a host without an agent, and shows the
// figures where an agent has its API. up, which may be nil, is told the URL, ""
// for none.
func ServeGC(ctx context.Context, cfg config.Config, log *slog.Logger, up func(url string)) (err error) {
	l, err := openAPI(cfg.API)
	if err != nil {
		// An agent has the same address.
		return holdfast.WithHint(err, "beside an agent, and wherever it is taken, name another one with --api, or none: --api none")
	}
	if l != nil {
		defer l.Close() // closed already where it was served
	}
	tokens, err := api.OpenTokens(api.TokenFiles{Admin: cfg.API.TokenFile, Read: cfg.API.ReadTokenFile}, log)
	if err != nil {
		return err
	}
	metrics := newRegistry()
	g, err := OpenGC(ctx, cfg, metrics, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	all, running := errgroup.WithContext(ctx)
	all.Go(func() error { return g.Serve(running) })
	url := ""
	if l != nil {
		url = scheme(cfg.API.CertFile) + l.Addr().String()
		show := api.NewMetrics(api.Options{Tokens: tokens, Metrics: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}), Log: log})
		all.Go(func() error { return api.Serve(running, l, show, log) })
	}
	all.Go(func() error { return g.pulse(running, log) })
	if up != nil {
		up(url)
	}
	sdnotify.Notify(log, sdnotify.Ready)
	if err := all.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	return nil
}

// pulse tells a service manager's watchdog, where there is one, that the collector
// lives, three times in the watchdog's time (sd_watchdog_enabled(3)). It is not told
// where a lock is stuck. An engine that is away, or takes minutes for a removal, and
// spin-ups that are waited for, are no reason to be ended.
func (g *GC) pulse(ctx context.Context, log *slog.Logger) error {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil || limit == 0 {
		return err
	}
	tick := time.NewTicker(limit / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.Answers()
			g.list.UnderWay()
			sdnotify.Notify(log, sdnotify.Alive)
		case <-ctx.Done():
			sdnotify.Notify(log, sdnotify.Stopping)
			return nil
		}
	}
}
