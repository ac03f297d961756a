package agent

import (
	"context"
	"errors"
	"path/filepath"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/puller"
	"holdfast/internal/hosts/spinup/warm"
	"holdfast/internal/platform/engine"
)

// keepWarm keeps images present on this host.
func (a *Agent) keepWarm(p *parts, e engine.Engine) {
	pulls := puller.New(puller.Config{
		Engine: e, Logins: puller.DockerLogins{}, Manifests: puller.Registries{},
		Host: string(a.node), Unpigz: spinup.HasUnpigz(), Log: a.log,
	})
	a.warm = warm.New(a.cfg.Images, warm.Deps{
		Engine: e, File: filepath.Join(a.cfg.DataDir, warm.FileName), Log: a.log,
		Pull: func(ctx context.Context, image string) error {
			defer a.spinups.Begin(spinup.ForPull, image)()
			record, err := pulls.Pull(ctx, puller.Request{Image: image, Missing: true, Job: "warm"}, nil)
			a.spinups.Record(record)
			if err == nil {
				a.log.Info("an image that is to be kept is here", "image", image, "pull", record.Pull.Line())
			}
			return err
		},
	})
	p.start("images that are kept", a.warm.Run)
}

func (b backend) WarmImages(context.Context) ([]holdfast.WarmImage, error) {
	return b.a.warm.List(), nil
}

func (b backend) AddWarmImages(_ context.Context, images []string) error {
	return warmError(b.a.warm.Add(images...))
}

func (b backend) RemoveWarmImages(_ context.Context, images []string) error {
	return warmError(b.a.warm.Remove(images...))
}

// warmError makes the mistakes of who asks bad requests.
func warmError(err error) error {
	if name := (*warm.NameError)(nil); errors.As(err, &name) || errors.Is(err, warm.ErrFixed) {
		return &api.Error{Code: api.CodeBadRequest, Message: err.Error(), Advice: holdfast.HintOf(err)}
	}
	return err
}
