package agent

import (
	"context"
	"path/filepath"
	"time"

	"holdfast/internal/agent/jobnode"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/hosts/spinup/puller"
	"holdfast/internal/platform/tasks"
)

// newCollector returns the garbage collector. Even if collection is disabled, the collector
// follows the use of images, so that a plan is right once collection is enabled.
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

// newPuller returns the puller of all images that the agent pulls.
func (a *Agent) newPuller() *puller.Puller {
	return puller.New(puller.Config{
		Engine: a.engine, Logins: puller.DockerLogins{}, Manifests: puller.Registries{},
		Host: string(a.node), Unpigz: spinup.HasUnpigz(), Log: a.log,
	})
}

// pullFor pulls the image of a session or of a warm container.
func (a *Agent) pullFor(ctx context.Context, image string) (spinup.Pull, error) {
	record, err := a.pulls.Pull(ctx, puller.Request{Image: image}, nil)
	return *record.Pull, err
}

// keepPrefetched starts the keeper that keeps the configured images present on this
// host.
func (a *Agent) keepPrefetched(p *tasks.Stack) {
	a.prefetch = prefetch.New(a.cfg.Images, prefetch.Deps{
		Engine: a.engine, File: filepath.Join(a.cfg.DataDir, prefetch.FileName), Log: a.log,
		Pull: func(ctx context.Context, image string) error {
			defer a.spinups.Begin(spinup.ForPull, image)()
			record, err := a.pulls.Pull(ctx, puller.Request{Image: image, Missing: true, Job: "prefetch"}, nil)
			a.spinups.Record(record)
			if err == nil {
				a.log.Info("pulled an image ahead of use", "image", image, "pull", record.Pull.Line())
			}
			return err
		},
	})
	p.Start("prefetch", a.prefetch.Run)
}

// newJobs starts the part of the fleet's jobs that this node runs.
func (a *Agent) newJobs(p *tasks.Stack) (err error) {
	d := jobnode.Deps{Engine: a.engine, Puller: a.pulls, Spinups: a.spinups, Nodes: a.store.Nodes, Draining: a.sessions.Draining, Log: a.log}
	if a.peers != nil {
		d.Client = a.clientTo
	}
	if a.jobs, err = jobnode.New(a.cfg, a.node, a.opt.JobWatcher, d); err == nil {
		p.Start("jobs", a.jobs.Run)
	}
	return err
}
