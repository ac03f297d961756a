package netpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"holdfast/internal/platform/engine"
)

// Run fills the pool, ends what is not wanted and removes what is dead, until ctx
// is done. What is ready stays then: End ends it, or the next agent, which does
// not know what it was used for.
func (p *Pool) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		if p.tend(ctx) {
			continue
		}
		var again <-chan time.Time
		if p.pending() {
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

// tend does one thing, and reports whether it did: the next may follow at once.
func (p *Pool) tend(ctx context.Context) bool {
	p.unwanted()
	if time.Since(p.swept) >= sweepEvery {
		p.swept = time.Now()
		p.sweep(ctx)
	}
	if !p.quiet.Now() {
		return p.crowded() && p.remove(ctx)
	}
	if p.lacks() && p.make(ctx) {
		return true
	}
	return p.remove(ctx)
}

// unwanted ends what is ready and dead, and all that is ready while no session may
// come.
func (p *Pool) unwanted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buryLocked()
	if p.deps.Wanted() {
		return
	}
	for _, n := range p.idle {
		p.doomLocked(n)
	}
	p.idle = nil
}

// lacks reports whether a network is to be made now.
func (p *Pool) lacks() bool {
	if !p.deps.Wanted() || time.Now().Before(p.makeAt) {
		return false
	}
	ready, _, size := p.Counts()
	return ready < size
}

// pending reports whether something waits for quiet. It is asked for often only
// then.
func (p *Pool) pending() bool {
	p.mu.Lock()
	doomed := len(p.doomed)
	p.mu.Unlock()
	return doomed > 0 && !time.Now().Before(p.removeAt) || p.lacks()
}

// crowded reports whether too much waits to be removed.
func (p *Pool) crowded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.doomed) > maxDoomed
}

// make makes one network, and reports whether it could.
func (p *Pool) make(ctx context.Context) bool {
	begun := time.Now()
	n, err := p.makeOne(ctx)
	if ctx.Err() != nil && err != nil {
		return false
	}
	p.deps.Metrics.made(time.Since(begun), err)
	if err != nil {
		level := slog.LevelDebug // said once
		if p.pause == 0 {
			level = slog.LevelWarn
		}
		p.pause = min(max(2*p.pause, firstPause), longestPause)
		p.makeAt = time.Now().Add(p.pause)
		p.log.Log(ctx, level, "no network can be kept ready: sessions get theirs as they boot (will be tried again)", "err", err)
		return false
	}
	p.pause = 0
	p.mu.Lock()
	p.idle = append(p.idle, n)
	p.mu.Unlock()
	return true
}

func (p *Pool) makeOne(ctx context.Context) (_ *network, err error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	spec := engine.Spec{
		Name: newName(), Image: Image, Labels: map[string]string{Label: string(p.cfg.Node)},
		Restart: engine.RestartNo, NoNewPrivileges: true, NoCapabilities: true,
	}
	id, err := p.create(ctx, spec)
	if err != nil {
		return nil, err // a container that was made all the same is found by its label
	}
	defer func() {
		if err != nil {
			p.doom(id)
		}
	}()
	if err := p.expect(id); err != nil {
		return nil, err
	}
	if err := p.deps.Engine.Start(ctx, id); err != nil {
		return nil, err
	}
	c, err := p.deps.Engine.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(c.Addresses) == 0 {
		return nil, errors.New("the engine's default network gives a container no address")
	}
	holder, err := p.deps.Opener.Open(c.ID, c.Name, c.Pid)
	if err != nil {
		return nil, err
	}
	p.hold(holder)
	return &network{holder: holder, hostname: c.ID[:min(hostnameLen, len(c.ID))], address: c.Addresses[0]}, nil
}

// create makes the container, with its image where the engine has that no more.
func (p *Pool) create(ctx context.Context, spec engine.Spec) (string, error) {
	id, err := p.deps.Engine.Create(ctx, spec)
	if !errors.Is(err, engine.ErrNoImage) {
		return id, err
	}
	if err := load(ctx, p.deps.Engine); err != nil {
		return "", fmt.Errorf("the image of what holds a network: %w", err)
	}
	return p.deps.Engine.Create(ctx, spec)
}

func (p *Pool) doom(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doomed = append(p.doomed, ids...)
}

// sweep finds containers of the node that this pool does not know: an earlier
// agent's, and such that were made although the engine answered with an error.
// Nobody knows who has used them.
func (p *Pool) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	list, err := p.deps.Engine.List(ctx, map[string]string{Label: string(p.cfg.Node)})
	if err != nil {
		p.log.Debug("looking for networks that nobody uses (will be done again)", "err", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range list {
		known := p.used[c.ID] != nil || slices.Contains(p.doomed, c.ID) ||
			slices.ContainsFunc(p.idle, func(n *network) bool { return n.holder.ID == c.ID })
		if !known {
			p.log.Info("removing a network that no session uses", "container", c.Name, "state", c.State)
			p.doomed = append(p.doomed, c.ID)
		}
	}
}

// remove removes one dead holder, and reports whether it could.
func (p *Pool) remove(ctx context.Context) bool {
	p.mu.Lock()
	n := len(p.doomed)
	p.mu.Unlock()
	if n == 0 || time.Now().Before(p.removeAt) {
		return false
	}
	_, err := p.removeOne(ctx)
	if err != nil {
		p.removeAt = time.Now().Add(firstPause)
	}
	return err == nil
}

// removeOne removes the first of the doomed, kills it if it lives, and returns how
// many are left. One that cannot be removed goes to the end.
func (p *Pool) removeOne(ctx context.Context) (left int, err error) {
	p.mu.Lock()
	if len(p.doomed) == 0 {
		p.mu.Unlock()
		return 0, nil
	}
	id := p.doomed[0]
	p.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	if err = p.deps.Engine.Remove(limited, id); err == nil {
		p.forget(id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doomed = slices.DeleteFunc(p.doomed, func(x string) bool { return x == id })
	if err != nil {
		p.doomed = append(p.doomed, id)
		if ctx.Err() == nil {
			p.log.Debug("removing a network that is over (will be tried again)", "container", id, "err", err)
		}
	}
	return len(p.doomed), err
}
