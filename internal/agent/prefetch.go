package agent

import (
	"context"
	"path/filepath"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/hosts/spinup/puller"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// keepPrefetched starts the keeper that keeps the configured images present on this
// host.
func (a *Agent) keepPrefetched(p *tasks.Stack, e engine.Engine) {
	pulls := puller.New(puller.Config{
		Engine: e, Logins: puller.DockerLogins{}, Manifests: puller.Registries{},
		Host: string(a.node), Unpigz: spinup.HasUnpigz(), Log: a.log,
	})
	a.prefetch = prefetch.New(a.cfg.Images, prefetch.Deps{
		Engine: e, File: filepath.Join(a.cfg.DataDir, prefetch.FileName), Log: a.log,
		Pull: func(ctx context.Context, image string) error {
			defer a.spinups.Begin(spinup.ForPull, image)()
			record, err := pulls.Pull(ctx, puller.Request{Image: image, Missing: true, Job: "prefetch"}, nil)
			a.spinups.Record(record)
			if err == nil {
				a.log.Info("pulled an image ahead of use", "image", image, "pull", record.Pull.Line())
			}
			return err
		},
	})
	p.Start("prefetch", a.prefetch.Run)
}
