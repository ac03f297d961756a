package job

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// fetched is an image that is pulled on behalf of all containers that use it.
type fetched struct {
	done chan struct{} // closed when pull and err are valid
	pull spinup.Pull
	err  error
}

// fetchAll pulls each of the job's images once, all at the same time. If a pull
// fails, the containers that wait for it fail.
func (x *underway) fetchAll(ctx context.Context, g *errgroup.Group) map[string]*fetched {
	all := map[string]*fetched{}
	for _, img := range x.job.Images {
		if all[img.Image] != nil {
			continue
		}
		f := &fetched{done: make(chan struct{})}
		all[img.Image] = f
		g.Go(func() error {
			defer close(f.done)
			if f.pull, f.err = x.fetch(ctx, img.Image); f.err == nil {
				x.tell(-1, img.Image, f.pull.Line())
			}
			return nil
		})
	}
	return all
}

func (x *underway) fetch(ctx context.Context, image string) (spinup.Pull, error) {
	if x.job.Pull != PullNever {
		return x.Puller.Pull(ctx, image, x.job.Platform, x.job.Pull == PullMissing)
	}
	begun := time.Now()
	pull := spinup.Pull{Image: image, Begun: begun}
	var err error
	if pull.Digest, err = x.Engine.ImageDigest(ctx, image); err != nil {
		return pull, holdfast.WithHint(fmt.Errorf("image %s: %w", image, err), "pull it, or set pull: missing in the job")
	}
	pull.Done, pull.Cached = true, true
	return pull, nil
}

// figures returns the pull's figures for the record of one container. The first
// container gets the bytes. The others waited for the same pull and record the
// wait.
func (f *fetched) figures(first bool) spinup.Pull {
	if first || f.pull.Cached {
		return f.pull
	}
	p := f.pull
	p.Joined, p.Layers = true, nil
	p.Retries, p.RetryWait = 0, 0
	for _, t := range []*spinup.Transfer{&p.Download, &p.Extract} {
		*t = spinup.Transfer{Wall: t.Wall, Exact: true}
	}
	return p
}
