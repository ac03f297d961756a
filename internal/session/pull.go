package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/engine"
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
			err = m.pulls.fetch(ctx, image)
		}
		if err != nil {
			return fmt.Errorf("template %s: %w", t.Name, err)
		}
	}
	return nil
}

// pulls shares one pull of an image among all that wait for it. Their number is
// bounded by that of the images in the configuration.
type pulls struct {
	engine engine.Engine

	mu      sync.Mutex
	byImage map[string]*pull
}

// pull is one on its way. It ends early when nobody waits for it any more; the
// engine keeps the layers that it has.
type pull struct {
	cancel  context.CancelFunc
	waiting int           // guarded by pulls.mu
	done    chan struct{} // closed at its end
	err     error         // set before done is closed
}

func newPulls(e engine.Engine) *pulls { return &pulls{engine: e, byImage: map[string]*pull{}} }

// fetch pulls the image, or waits for whoever does. Whoever waits last also
// waits for the pull to end, so that none goes on without anybody.
func (p *pulls) fetch(ctx context.Context, image string) error {
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
		return fmt.Errorf("waiting for image %s: %w", image, err)
	}
	return one.err
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
			one.err = p.pull(ctx, image)
		}()
	}
	one.waiting++
	return one
}

// leave reports whether the caller was the last to wait; whoever comes then
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

func (p *pulls) pull(ctx context.Context, image string) error {
	begun := time.Now()
	err := retry(ctx, holdfast.ErrEngine, func() error {
		var last error
		for _, err := range p.engine.Pull(ctx, image, engine.PullOptions{}) {
			last = err
		}
		return last
	})
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("not there after %v: %w", time.Since(begun).Round(time.Second), err)
	}
	return holdfast.WithHint(fmt.Errorf("pulling image %s: %w", image, err),
		"correct the template's image, or bring it to this host yourself: docker pull "+image+" (docker login before that, if the registry asks for one), or docker load")
}
