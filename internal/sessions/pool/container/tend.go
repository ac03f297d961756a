package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
)

// Run keeps containers warm until ctx is done. Waiting containers stay frozen after
// that. End ends them, or the next agent, which does not know what they were used for.
func (p *Pool) Run(ctx context.Context) error {
	if len(p.kinds) == 0 {
		<-ctx.Done()
		return nil
	}
	for _, dir := range p.dirs() {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("creating a directory for warm containers: %w", err)
		}
	}
	p.setOpen(true)
	defer p.shut()
	pool.Loop(ctx, p.wake, p.tend, func() bool { return p.lacking() != nil })
	return nil
}

// dirs returns the directories of the identities.
func (p *Pool) dirs() []string {
	return slices.DeleteFunc([]string{p.cfg.Dir, p.cfg.SandboxDir}, func(dir string) bool { return dir == "" })
}

func (p *Pool) setOpen(open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = open
}

// shut makes Take return nothing and closes the sockets.
func (p *Pool) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = false
	for _, k := range p.kinds {
		for _, c := range k.idle {
			c.socket.close()
		}
	}
}

// tend does one thing and reports whether it did something. The next step may follow
// at once.
func (p *Pool) tend(ctx context.Context) bool {
	if time.Since(p.images) >= imageEvery {
		p.images = time.Now()
		p.lookAtImages(ctx)
		p.sweep(ctx)
	}
	p.retryFailed(ctx)
	if c := p.surplus(); c != nil {
		p.endSoon(ctx, c)
		return true
	}
	if !p.idleNode.Now() {
		return false
	}
	if k := p.lacking(); k != nil && (!k.Joins || p.deps.Networks == nil || p.deps.Networks.Settled()) {
		return p.make(ctx, k)
	}
	return false
}

// surplus removes a container from the pool that is dead or no longer wanted, and
// returns it.
func (p *Pool) surplus() *Container {
	short := p.deps.Pressure() == Short && time.Since(p.looked) >= pool.LookEvery
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kinds {
		want := k.demand.want(k.Most, time.Now())
		if !p.deps.Wanted() {
			want = 0
		} else if short && len(k.idle) > 0 {
			want = len(k.idle) - 1
			p.looked, short = time.Now(), false
		}
		i := slices.IndexFunc(k.idle, func(c *Container) bool { return c.target.Init().Exited() || c.image == "" })
		if i < 0 && len(k.idle) > want {
			i = 0
		}
		if i >= 0 {
			c := k.idle[i]
			k.idle = slices.Delete(k.idle, i, i+1)
			return c
		}
	}
	return nil
}

func (p *Pool) endSoon(ctx context.Context, c *Container) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pool.EngineTimeout)
	defer cancel()
	if err := p.endAll(ctx, []*Container{c}); err != nil {
		p.log.Warn("ending a warm container", "container", c.name, "err", err)
	}
}

// lacking returns a template that needs a container now, or nil.
func (p *Pool) lacking() *kind {
	if !p.deps.Wanted() || p.deps.Pressure() != NoPressure {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, k := range p.kinds {
		if len(k.idle) < k.demand.want(k.Most, now) && !k.making.Waiting() {
			return k
		}
	}
	return nil
}

// make creates one container and reports whether it succeeded.
func (p *Pool) make(ctx context.Context, k *kind) bool {
	begun := time.Now()
	c, err := p.makeOne(ctx, k)
	if ctx.Err() != nil && err != nil {
		return false
	}
	took := time.Since(begun)
	p.deps.Metrics.Made(took, err, k.Name)
	if err != nil {
		level := slog.LevelDebug // logged once
		if k.making.Failed() {
			level = slog.LevelWarn
		}
		p.log.Log(ctx, level, "no container can be kept warm: sessions boot (will retry)", "template", k.Name, "err", err)
		return false
	}
	k.making.Succeeded()
	p.mu.Lock()
	defer p.mu.Unlock()
	k.demand.made(took)
	k.idle = append(k.idle, c)
	return true
}

func (p *Pool) makeOne(ctx context.Context, k *kind) (_ *Container, err error) {
	label, dir := pool.NewID(), p.cfg.Dir
	if k.Sandbox {
		dir = p.cfg.SandboxDir
	}
	c := &Container{label: label, name: "holdfast-warm-" + label, dir: filepath.Join(dir, label)}
	if c.image, err = p.imageOf(ctx, k); err != nil {
		return nil, err
	}
	// The container's users have to enter the directory. On this host only root can
	// reach it.
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, err
	}
	if !k.Sandbox {
		if c.socket, err = listen(c.dir); err != nil {
			return nil, errors.Join(err, os.RemoveAll(c.dir))
		}
	}
	if err := p.bringUp(ctx, k, c); err != nil {
		p.undo(ctx, c)
		return nil, err
	}
	return c, nil
}

// imageOf returns the id of a template's image, and fetches the image if it is
// missing.
func (p *Pool) imageOf(ctx context.Context, k *kind) (string, error) {
	id, err := p.deps.Engine.ImageID(ctx, k.Image)
	if !errors.Is(err, engine.ErrNoImage) {
		return id, err
	}
	if err := p.deps.Fetch(ctx, k.Name); err != nil {
		return "", err
	}
	return p.deps.Engine.ImageID(ctx, k.Image)
}

// bringUp creates and starts a container, waits until it answers, and freezes it.
func (p *Pool) bringUp(ctx context.Context, k *kind, c *Container) (err error) {
	ctx, cancel := context.WithTimeout(ctx, pool.EngineTimeout)
	defer cancel()
	spec := k.Spec(c.name, c.dir, c.label)
	if k.Joins && p.deps.Networks != nil {
		if n, ok := p.deps.Networks.Take(ctx, c.name); ok {
			c.network, spec = n.Addr, n.Join(spec, c.name)
		}
	}
	if c.id, err = p.deps.Engine.Create(ctx, spec); err != nil {
		return err
	}
	if k.Sandbox {
		if err := p.deps.Hold(c.id); err != nil {
			return err
		}
	}
	now, target, err := p.with.Start(ctx, c.id)
	if err != nil {
		return err
	}
	c.target = target
	if c.network.IsValid() {
		if err := p.deps.Networks.Started(c.network, target.Pid()); err != nil {
			return err
		}
	}
	if err := p.with.Hold(target); err != nil {
		return err
	}
	if c.address, err = k.Await(ctx, now, c.target.Alive); err != nil || k.Sandbox {
		return err
	}
	select {
	case <-c.socket.connected:
	case <-time.After(connectGrace):
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.freeze()
}

// undo removes what exists of a container that did not come up.
func (p *Pool) undo(ctx context.Context, c *Container) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pool.EngineTimeout)
	defer cancel()
	c.socket.close()
	if c.target != nil {
		killing, done := context.WithTimeout(ctx, killTimeout)
		defer done()
		p.deps.Killer.Kill(killing, []*kill.Target{c.target})
		c.target.Close()
	}
	if err := p.removeFailed(ctx, c); err != nil {
		p.log.Warn("removing an unfinished warm container (will retry)", "container", c.name, "err", err)
		p.failed = append(p.failed, c)
	}
}

// removeFailed removes a container that did not come up. Its network's holder is free
// afterwards, and not before: the engine may still start the container.
func (p *Pool) removeFailed(ctx context.Context, c *Container) error {
	if c.id != "" {
		if err := p.with.Remove(ctx, c.id); err != nil {
			return err
		}
	}
	p.drop(c)
	return os.RemoveAll(c.dir)
}

// retryFailed removes the containers that undo could not remove. What is left at the end of
// Run the next agent removes.
func (p *Pool) retryFailed(ctx context.Context) {
	if len(p.failed) == 0 || time.Since(p.retried) < pool.LookEvery {
		return
	}
	p.retried = time.Now()
	ctx, cancel := context.WithTimeout(ctx, pool.EngineTimeout)
	defer cancel()
	p.failed = slices.DeleteFunc(p.failed, func(c *Container) bool { return p.removeFailed(ctx, c) == nil })
}

// drop ends the network of a container that is gone.
func (p *Pool) drop(c *Container) {
	if c.network.IsValid() {
		p.deps.Networks.Drop(c.network)
	}
}

// lookAtImages marks the containers whose template has another image now.
func (p *Pool) lookAtImages(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pool.EngineTimeout)
	defer cancel()
	for _, k := range p.kinds {
		now, err := p.deps.Engine.ImageID(ctx, k.Image)
		if err != nil {
			continue // the engine may be unavailable for a moment; the containers are still usable
		}
		p.mu.Lock()
		for _, c := range k.idle {
			if c.image != now {
				c.image = ""
			}
		}
		p.mu.Unlock()
	}
}

// sweep removes directories without a container.
func (p *Pool) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pool.EngineTimeout)
	defer cancel()
	var all []string
	for _, dir := range p.dirs() {
		entries, _ := os.ReadDir(dir) // on an error there is nothing to remove
		for _, e := range entries {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	if len(all) == 0 {
		return
	}
	list, err := p.deps.Engine.List(ctx, map[string]string{Label: ""})
	if err != nil {
		return // the next check finds them
	}
	for _, dir := range all {
		if slices.ContainsFunc(list, func(c engine.Container) bool { return c.Labels[Label] == filepath.Base(dir) }) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			p.log.Warn("removing the directory of a warm container", "err", err)
		}
	}
}
