package agent

import (
	"context"
	"errors"
	"path/filepath"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/hosts/spinup/puller"
	"holdfast/internal/platform/engine"
)

// keepPrefetched keeps images present on this host.
func (a *Agent) keepPrefetched(p *parts, e engine.Engine) {
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
				a.log.Info("an image that is to be kept is here", "image", image, "pull", record.Pull.Line())
			}
			return err
		},
	})
	p.start("images that are kept", a.prefetch.Run)
}

func (b backend) PrefetchImages(context.Context) ([]prefetch.Entry, error) {
	return b.a.prefetch.List(), nil
}

func (b backend) AddPrefetchImages(_ context.Context, images []string) error {
	return prefetchError(b.a.prefetch.Add(images...))
}

func (b backend) RemovePrefetchImages(_ context.Context, images []string) error {
	return prefetchError(b.a.prefetch.Remove(images...))
}

// prefetchError makes the mistakes of who asks bad requests.
func prefetchError(err error) error {
	if name := (*prefetch.NameError)(nil); errors.As(err, &name) || errors.Is(err, prefetch.ErrFixed) {
		return &api.Error{Code: api.CodeBadRequest, Message: err.Error(), Advice: holdfast.HintOf(err)}
	}
	return err
}
