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

// Fetch sees to it that the images of a template ("" is the default one) are on
// this host, pulling those that are not. It returns when they are. Errors are
// ctx's, holdfast.ErrNotFound of the template, or why an image cannot be had,
// with a hint.
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

// fetchAhead pulls an image for which no container waits yet.
func (m *Manager) fetchAhead(ctx context.Context, image string) error {
	end := m.deps.Spinups.Begin(spinup.ForPull, image)
	defer end()
	t := spinup.NewTimer(spinup.ForPull, image, m.deps.Spinups.Cohort())
	figures, err := m.pulls.fetch(ctx, image)
	t.Pulled(figures)
	m.deps.Spinups.Record(t.End(err))
	return err
}

// pulls shares one pull of an image among all that wait for it. Their number is
// bounded by that of the images in the configuration.
type pulls struct {
	engine  engine.Engine
	spinups Spinups

	mu      sync.Mutex
	byImage map[string]*pull
}

// pull is one on its way. It ends early when nobody waits for it any more; the
// engine keeps the layers that it has.
type pull struct {
	cancel  context.CancelFunc
	waiting int           // guarded by pulls.mu
	counted bool          // somebody has its figures; guarded by pulls.mu
	done    chan struct{} // closed at its end
	figures spinup.Pull   // set before done is closed
	err     error         // likewise
}

func newPulls(e engine.Engine, s Spinups) *pulls {
	return &pulls{engine: e, spinups: s, byImage: map[string]*pull{}}
}

// fetch pulls the image, or waits for whoever does, and returns the pull's
// figures as far as they are the caller's to count. Whoever waits last also
// waits for the pull to end, so that none goes on without anybody.
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

// countFigures returns the figures of a pull that has ended, to the first who asks in
// full.
func (p *pulls) countFigures(one *pull, waited time.Duration) spinup.Pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.counted {
		return one.figures.Shared(waited)
	}
	one.counted = true
	return one.figures
}

// join begins a pull, or finds the one on its way.
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

// releaseSuspended reports whether the caller was the last to wait; whoever comes then
// begins another.
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
		o := spinup.Options{Image: image, Begun: time.Now(), ImageStore: p.spinups.Cohort().ImageStore}
		figures, err = spinup.Reduce(o, p.engine.Pull(ctx, image, engine.PullOptions{}), nil)
		return err
	})
	if err == nil {
		return figures, nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("not there after %v: %w", time.Since(begun).Round(time.Second), err)
	}
	return figures, holdfast.WithHint(fmt.Errorf("pulling image %s: %w", image, err),
		"correct the template's image, or bring it to this host yourself: docker pull "+image+" (docker login before that, if the registry asks for one), or docker load")
}
