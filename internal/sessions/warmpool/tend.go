package warmpool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
)

// Run keeps containers warm until ctx is done. What waits then stays frozen: End
// ends it, or the next agent, which does not know what it was used for.
func (p *Pool) Run(ctx context.Context) error {
	if len(p.kinds) == 0 {
		<-ctx.Done()
		return nil
	}
	if err := os.MkdirAll(p.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("a directory for warm containers: %w", err)
	}
	p.setOpen(true)
	defer p.shut()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		if p.tend(ctx) {
			continue
		}
		var again <-chan time.Time
		if p.lacking() != nil {
			again = time.After(quietPoll)
		}
		select {
		case <-p.poke:
		case <-tick.C:
		case <-again:
		case <-ctx.Done():
		}
	}
	return nil
}

func (p *Pool) setOpen(open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = open
}

// shut has Take find nothing any more and ends the sockets.
func (p *Pool) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = false
	for _, k := range p.kinds {
		for _, c := range k.idle {
			c.talk.close()
		}
	}
}

// tend does one thing, and reports whether it did: the next may follow at once.
func (p *Pool) tend(ctx context.Context) bool {
	if time.Since(p.images) >= imageEvery {
		p.images = time.Now()
		p.lookAtImages(ctx)
		p.sweep(ctx)
	}
	if c := p.surplus(); c != nil {
		p.endSoon(ctx, c)
		return true
	}
	if !p.quiet.Now() {
		return false
	}
	if k := p.lacking(); k != nil {
		return p.make(ctx, k)
	}
	return false
}

// surplus takes out a container that is dead, or that nobody wants any more.
func (p *Pool) surplus() *Container {
	short := p.deps.Pressure() == Short && time.Since(p.looked) >= lookEvery
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
	defer cancel()
	if err := p.endAll(ctx, []*Container{c}); err != nil {
		p.log.Warn("ending a warm container", "container", c.name, "err", err)
	}
}

// lacking is a template of which a container is to be made now; nil: none.
func (p *Pool) lacking() *kind {
	if !p.deps.Wanted() || p.deps.Pressure() != NoPressure {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, k := range p.kinds {
		if len(k.idle) < k.demand.want(k.Most, now) && !now.Before(k.makeAt) {
			return k
		}
	}
	return nil
}

// make makes one container, and reports whether it could.
func (p *Pool) make(ctx context.Context, k *kind) bool {
	begun := time.Now()
	c, err := p.makeOne(ctx, k)
	if ctx.Err() != nil && err != nil {
		return false
	}
	took := time.Since(begun)
	p.deps.Metrics.made(k.Name, took, err)
	if err != nil {
		level := slog.LevelDebug // said once
		if k.pause == 0 {
			level = slog.LevelWarn
		}
		k.pause = min(max(2*k.pause, firstPause), longestPause)
		k.makeAt = time.Now().Add(k.pause)
		p.log.Log(ctx, level, "no container can be kept warm: sessions boot (will be tried again)", "template", k.Name, "err", err)
		return false
	}
	k.pause = 0
	p.mu.Lock()
	defer p.mu.Unlock()
	k.demand.made(took)
	k.idle = append(k.idle, c)
	return true
}

func (p *Pool) makeOne(ctx context.Context, k *kind) (_ *Container, err error) {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails
	label := hex.EncodeToString(b)
	c := &Container{label: label, name: "holdfast-warm-" + label, dir: filepath.Join(p.cfg.Dir, label)}
	if c.image, err = p.imageOf(ctx, k); err != nil {
		return nil, err
	}
	// The container's users have to get in; of this host's only root can.
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, err
	}
	if c.talk, err = listen(c.dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(c.dir))
	}
	if err := p.bringUp(ctx, k, c); err != nil {
		p.undo(ctx, c)
		return nil, err
	}
	return c, nil
}

// imageOf is the id of a template's image, which is fetched where it is missing.
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

// bringUp makes a container run, answer, and freeze.
func (p *Pool) bringUp(ctx context.Context, k *kind, c *Container) (err error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	if c.id, err = p.deps.Engine.Create(ctx, k.Spec(c.name, c.dir, c.label)); err != nil {
		return err
	}
	if p.deps.Deadman != nil {
		if err := p.deps.Deadman.Expect(c.id); err != nil {
			return err
		}
	}
	if err := p.deps.Engine.Start(ctx, c.id); err != nil {
		return err
	}
	now, err := p.deps.Engine.Inspect(ctx, c.id)
	if err != nil {
		return err
	}
	if !now.Running() {
		return fmt.Errorf("the container ended with exit code %d", now.ExitCode)
	}
	if c.target, err = p.deps.Opener.Open(now.ID, now.Name, now.Pid); err != nil {
		return err
	}
	if p.deps.Deadman != nil {
		if err := p.deps.Deadman.Hold(c.target); err != nil {
			return err
		}
	}
	if c.address, err = k.Await(ctx, now, c.target.Alive); err != nil {
		return err
	}
	select {
	case <-c.talk.connected:
	case <-time.After(connectGrace):
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.freeze()
}

// undo ends a container that did not come up, whatever there is of it.
func (p *Pool) undo(ctx context.Context, c *Container) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
	defer cancel()
	c.talk.close()
	if c.target != nil {
		killing, done := context.WithTimeout(ctx, killTimeout)
		defer done()
		p.deps.Killer.Kill(killing, []*kill.Target{c.target})
		c.target.Close()
	}
	var err error
	if c.id != "" {
		err = p.deps.Engine.Remove(ctx, c.id)
		if err == nil && p.deps.Deadman != nil {
			p.deps.Deadman.Forget(c.id)
		}
	}
	if err == nil {
		err = os.RemoveAll(c.dir)
	}
	if err != nil {
		p.log.Warn("removing a container that was to be kept warm (the next agent will)", "container", c.name, "err", err)
	}
}

// lookAtImages marks containers whose template's image is another by now.
func (p *Pool) lookAtImages(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	for _, k := range p.kinds {
		now, err := p.deps.Engine.ImageID(ctx, k.Image)
		if err != nil {
			continue // it may be away for a moment; what runs is as good as before
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

// sweep removes directories whose containers are gone.
func (p *Pool) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	entries, err := os.ReadDir(p.cfg.Dir)
	if err != nil || len(entries) == 0 {
		return
	}
	list, err := p.deps.Engine.List(ctx, map[string]string{Label: ""})
	if err != nil {
		return // the next look finds them
	}
	for _, e := range entries {
		if slices.ContainsFunc(list, func(c engine.Container) bool { return c.Labels[Label] == e.Name() }) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(p.cfg.Dir, e.Name())); err != nil {
			p.log.Warn("removing what a warm container was told", "err", err)
		}
	}
}
