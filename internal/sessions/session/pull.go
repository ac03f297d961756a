package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// Fetch ensures that the images of a template ("" is the default one) are on this
// host, and pulls missing ones. It returns when all are present. Errors: ctx's error,
// holdfast.ErrNotFound for the template, or why an image cannot be pulled, with a
// hint.
func (m *Manager) Fetch(ctx context.Context, template string) error {
	t, err := m.template(template)
	if err != nil {
		return err
	}
	for _, image := range t.images() {
		_, err := m.deps.Engine.ImageID(ctx, image)
		if errors.Is(err, engine.ErrNoImage) {
			err = m.fetchAhead(ctx, image)
		}
		if err != nil {
			return fmt.Errorf("template %s: %w", t.Name, err)
		}
	}
	return nil
}

// fetchAhead pulls an image that no container waits for yet.
func (m *Manager) fetchAhead(ctx context.Context, image string) error {
	end := m.deps.Spinups.Begin(spinup.ForPull, image)
	defer end()
	t := spinup.NewTimer(spinup.ForPull, image, m.deps.Spinups.Cohort())
	figures, err := m.pulls.fetch(ctx, image)
	t.Pulled(figures)
	m.deps.Spinups.Record(t.End(err))
	return err
}

// pulls shares one pull of an image among all that wait for it. The number of images
// in the configuration bounds the number of pulls.
type pulls struct {
	fetchOne func(ctx context.Context, image string) (spinup.Pull, error) // Deps.Pull

	mu      sync.Mutex
	byImage map[string]*pull
}

// pull is one pull in progress. It ends early when the last waiter leaves; the engine
// keeps the layers that it has.
type pull struct {
	cancel  context.CancelFunc
	waiting int           // guarded by pulls.mu
	counted bool          // its figures are already counted; guarded by pulls.mu
	done    chan struct{} // closed at its end
	figures spinup.Pull   // set before done is closed
	err     error         // likewise
}

func newPulls(one func(context.Context, string) (spinup.Pull, error)) *pulls {
	return &pulls{fetchOne: one, byImage: map[string]*pull{}}
}

// fetch pulls the image, or joins a pull in progress. It returns the figures of the
// pull, as far as this caller counts them. The last waiter also waits for the end of a
// cancelled pull, so that no pull continues without a waiter.
func (p *pulls) fetch(ctx context.Context, image string) (spinup.Pull, error) {
	joined := time.Now()
	one := p.join(ctx, image)
	select {
	case <-one.done:
	case <-ctx.Done():
	}
	if p.leave(image, one) {
		one.cancel()
		<-one.done
	}
	if err := ctx.Err(); err != nil {
		return spinup.Pull{Image: image, Begun: joined}, fmt.Errorf("waiting for image %s: %w", image, err)
	}
	return p.countFigures(one, time.Since(joined)), one.err
}

// countFigures returns the complete figures of a finished pull to the first caller,
// and shared figures to the others.
func (p *pulls) countFigures(one *pull, waited time.Duration) spinup.Pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.counted {
		return one.figures.Shared(waited)
	}
	one.counted = true
	return one.figures
}

// join starts a pull, or joins the one in progress.
func (p *pulls) join(ctx context.Context, image string) *pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.byImage[image]
	if one == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pullTimeout)
		one = &pull{cancel: cancel, done: make(chan struct{})}
		p.byImage[image] = one
		go func() {
			defer close(one.done)
			one.figures, one.err = p.pull(ctx, image)
		}()
	}
	one.waiting++
	return one
}

// leave reports whether the caller was the last waiter. The next fetch then starts a
// new pull.
func (p *pulls) leave(image string, one *pull) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.waiting--
	if one.waiting > 0 {
		return false
	}
	delete(p.byImage, image)
	return true
}

func (p *pulls) pull(ctx context.Context, image string) (figures spinup.Pull, err error) {
	begun := time.Now()
	err = retry(ctx, holdfast.ErrEngine, func() (err error) {
		figures, err = p.fetchOne(ctx, image)
		return err
	})
	if err == nil {
		return figures, nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("not there after %v: %w", time.Since(begun).Round(time.Second), err)
	}
	return figures, holdfast.WithHint(fmt.Errorf("pulling image %s: %w", image, err),
		"correct the template's image, or load it on this host: docker pull "+image+" (after docker login, if the registry requires it), or docker load")
}
