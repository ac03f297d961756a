package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/api"
	"holdfast/internal/config"
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
	if up != nil {
		up(url)
	}
	if err := all.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	return nil
}
