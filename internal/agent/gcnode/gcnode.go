// Package gcnode is garbage collection on a host without an agent.
package gcnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/others"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/hosts/spinup/recorder"
	"holdfast/internal/hosts/spinup/underway"
	"holdfast/internal/platform/sdnotify"
)

// GC is a collector that observes the engine itself. Its methods may be called from
// any goroutine.
type GC struct {
	*gc.Collector
	engine process.Engine
	list   *underway.List
	others *others.Watcher
}

// Open connects to the engine. The collector observes spin-ups only while Watch or Serve
// runs.
func Open(ctx context.Context, cfg config.Config, reg prometheus.Registerer, log *slog.Logger) (*GC, error) {
	// Without templates: the collector needs no network for sessions.
	e, err := process.OpenEngine(ctx, config.Config{DataDir: cfg.DataDir, Engine: cfg.Engine})
	if err != nil {
		return nil, err
	}
	root := "" // the data root of an engine on this host: pulls can be seen there
	if info, err := e.Info(ctx); err == nil && info.Socket != "" {
		root = info.DataRoot
	}
	g := &GC{engine: e, list: recorder.NewUnderWay(cfg.RunDir, reg, log)}
	g.Collector = gc.New(cfg.Collection(), gc.Deps{
		Engine: e, Store: gc.NewStore(cfg.DataDir, log), Spinups: g.list, LockDir: cfg.RunDir, Metrics: gc.NewMetrics(reg), Log: log,
		Keep: func() ([]string, error) { return keptNames(cfg.DataDir) },
	})
	cohort := spinup.Cohort{Host: cfg.Node}
	g.others = others.New(e, others.Config{
		Cohort:    func() spinup.Cohort { return cohort },
		Begin:     func(kind spinup.Kind, name string) func() { return recorder.Begin(g.list, kind, name, log) },
		Record:    func(r spinup.Record) { g.Observe(r.Begun, time.Duration(r.Took), cfg.Spinup.Slow.Slow(r) != nil) },
		Connected: func() {},
		DataRoot:  func() string { return root },
		Busy:      func() bool { return false },
		Log:       log,
	})
	return g, nil
}

// keptNames returns the names of the images that an agent of this host keeps present.
// The agent may not run.
func keptNames(dataDir string) ([]string, error) {
	names, err := prefetch.ReadList(filepath.Join(dataDir, prefetch.FileName))
	for i, image := range names {
		names[i] = config.FamiliarName(image)
	}
	return names, err
}

// Watch observes spin-ups and the use of images until ctx is done, for a single
// collection.
func (g *GC) Watch(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	g.observe(ctx, all)
	all.Go(func() error { return g.Follow(ctx) })
	return all.Wait()
}

// observe starts to observe spin-ups.
func (g *GC) observe(ctx context.Context, all *errgroup.Group) {
	all.Go(func() error { return g.list.Run(ctx) })
	all.Go(func() error { return g.others.Run(ctx) })
}

// Serve collects until ctx is done. It returns gc.ErrHidden if it cannot see the disk that the
// rules depend on.
func (g *GC) Serve(ctx context.Context) error {
	if err := g.Check(ctx); errors.Is(err, gc.ErrHidden) {
		return err // an engine that does not answer is awaited
	}
	all, ctx := errgroup.WithContext(ctx)
	g.observe(ctx, all)
	all.Go(func() error { return g.Run(ctx) })
	return all.Wait()
}

// Close closes the connections to the engine.
func (g *GC) Close() error { return g.engine.Close() }

// Serve collects until ctx is done and serves the metrics at the address of the API.
// up is called with the URL, "" for none.
func Serve(ctx context.Context, cfg config.Config, log *slog.Logger, up func(url string)) (err error) {
	l, err := process.ListenAPI(cfg.API, log)
	if err != nil {
		// An agent of this host may have the same address.
		return holdfast.WithHint(err, "set another address with --api, or none with --api none")
	}
	if l != nil {
		defer l.Close() // the server has closed it already, if it ran
	}
	tokens, err := api.OpenTokens(api.TokenFiles{Admin: cfg.API.TokenFile, Read: cfg.API.ReadTokenFile}, log)
	if err != nil {
		return err
	}
	metrics := process.NewRegistry()
	g, err := Open(ctx, cfg, metrics, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	all, running := errgroup.WithContext(ctx)
	all.Go(func() error { return g.Serve(running) })
	url := ""
	if l != nil {
		url = process.Scheme(cfg.API.CertFile) + l.Addr().String()
		show := api.NewMetrics(api.Options{Tokens: tokens, Metrics: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}), Log: log})
		all.Go(func() error { return api.Serve(running, l, show, log) })
	}
	all.Go(func() error { return g.keepAlive(running, log) })
	up(url)
	sdnotify.Notify(log, sdnotify.Ready)
	if err := all.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	return nil
}

// keepAlive notifies the watchdog of the service manager three times in each of its
// periods (sd_watchdog_enabled(3)). A stuck lock stops the notifications; an engine that
// is away or slow, and a wait for spin-ups, do not.
func (g *GC) keepAlive(ctx context.Context, log *slog.Logger) error {
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
