package agent

import (
	"context"
	"time"

	"holdfast/internal/control/config"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup"
)

// newCollector returns the garbage collector. Where collection is not enabled it
// follows the use of images all the same, so that a plan is right once it is enabled.
func (a *Agent) newCollector(e gc.Engine) *gc.Collector {
	c := gc.New(a.cfg.Collection(), gc.Deps{
		Engine: e, Store: gc.NewStore(a.cfg.DataDir, a.log), Spinups: a.spinups.UnderWay(), LockDir: a.cfg.RunDir,
		Metrics: gc.NewMetrics(a.metrics), Log: a.log, Keep: a.prefetchNames,
	})
	a.spinups.Collected = func(r spinup.Record, slow bool) bool {
		return c.Observe(r.Begun, time.Duration(r.Took), slow)
	}
	return c
}

// prefetchNames returns the names of the images that the node keeps present. It is
// called after serve.
func (a *Agent) prefetchNames() ([]string, error) {
	var names []string
	for _, image := range a.prefetch.List() {
		names = append(names, config.FamiliarName(image.Image))
	}
	return names, nil
}

// runCollector runs the collector. An error of the collector does not end the agent.
func (a *Agent) runCollector(ctx context.Context) error {
	if err := a.collector.Run(ctx); err != nil && ctx.Err() == nil {
		a.log.Error("garbage collection has ended", "err", err)
	}
	<-ctx.Done()
	return nil
}
