package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/control/config"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/others"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/hosts/spinup/underway"
)

// newCollector makes the collector. Also where it is not enabled it follows what
// uses images: so a plan is right on the day on which somebody enables it.
func (a *Agent) newCollector(e gc.Engine) *gc.Collector {
	c := gc.New(a.cfg.Collection(), gc.Deps{
		Engine: e, Store: gc.NewStore(a.cfg.DataDir, a.log), Spinups: a.spinups.list, LockDir: a.cfg.RunDir,
		Metrics: gc.NewMetrics(a.metrics), Log: a.log, Keep: a.prefetchNames,
	})
	a.spinups.collected = func(r spinup.Record, slow bool) bool {
		return c.Observe(r.Begun, time.Duration(r.Took), slow)
	}
	return c
}

// prefetchNames are the images that somebody wants present on this host. It is called
// once everything serves.
func (a *Agent) prefetchNames() ([]string, error) {
	var names []string
	for _, image := range a.prefetch.List() {
		names = append(names, config.FamiliarName(image.Image))
	}
	return names, nil
}

// keptNames are those of an agent that may not run right now.
func keptNames(dataDir string) ([]string, error) {
	names, err := prefetch.ReadList(filepath.Join(dataDir, prefetch.FileName))
	for i, image := range names {
		names[i] = config.FamiliarName(image)
	}
	return names, err
}

// runCollector keeps garbage collection from ending the agent: sessions go on
// without it.
func (a *Agent) runCollector(ctx context.Context) error {
	if err := a.collector.Run(ctx); err != nil && ctx.Err() == nil {
		a.log.Error("garbage collection has ended", "err", err)
	}
	<-ctx.Done()
	return nil
}

// GC is garbage collection on a host without an agent. Its methods may be called
// from any goroutine.
type GC struct {
	*gc.Collector
	engine Engine
	list   *underway.List
	watch  *others.Watcher
}

// OpenGC connects to the engine. Until Run is called it does not know what spins
// up.
func OpenGC(ctx context.Context, cfg config.Config, reg prometheus.Registerer, log *slog.Logger) (*GC, error) {
	e, err := OpenEngine(ctx, cfg)
	if err != nil {
		return nil, err
	}
	root := "" // of an engine on this host: pulls are seen there
	if info, err := e.Info(ctx); err == nil && info.Socket != "" {
		root = info.DataRoot
	}
	g := &GC{engine: e, list: newUnderWay(cfg.RunDir, log)}
	countUnderWay(reg, g.list)
	g.Collector = gc.New(cfg.Collection(), gc.Deps{
		Engine: e, Store: gc.NewStore(cfg.DataDir, log), Spinups: g.list, LockDir: cfg.RunDir, Metrics: gc.NewMetrics(reg), Log: log,
		Keep: func() ([]string, error) { return keptNames(cfg.DataDir) },
	})
	cohort := spinup.Cohort{Host: cfg.Node}
	g.watch = others.New(e, others.Config{
		Cohort: func() spinup.Cohort { return cohort },
		Begin: func(kind spinup.Kind, name string) func() {
			entry, err := g.list.Begin(string(kind), name[:min(len(name), underway.MaxName)], otherLife)
			if err != nil {
				log.Debug("a spin-up does not count as under way", "name", name, "err", err)
				return func() {}
			}
			return func() { _ = g.list.End(entry.ID) } // its time may be up
		},
		Record:    func(r spinup.Record) { g.Observe(r.Begun, time.Duration(r.Took), cfg.Spinup.Slow.Slow(r) != nil) },
		Connected: func() {},
		DataRoot:  func() string { return root },
		Busy:      func() bool { return false },
		Log:       log,
	})
	return g, nil
}

// Watch knows what spins up, and what uses images, until ctx is done, and nothing
// else: for a single collection.
func (g *GC) Watch(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	g.spinups(ctx, all)
	all.Go(func() error { return g.Follow(ctx) })
	return all.Wait()
}

// spinups has all know what spins up.
func (g *GC) spinups(ctx context.Context, all *errgroup.Group) {
	all.Go(func() error { return g.list.Run(ctx) })
	all.Go(func() error { return g.watch.Run(ctx) })
}

// Serve collects until ctx is done.
func (g *GC) Serve(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	g.spinups(ctx, all)
	all.Go(func() error { return g.Run(ctx) })
	return all.Wait()
}

// Close drops the connections to the engine.
func (g *GC) Close() error { return g.engine.Close() }
