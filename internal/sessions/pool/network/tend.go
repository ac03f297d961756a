package network

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/pool"
)

// Run fills the pool, ends networks that are not wanted and removes dead holders,
// until ctx is done. Ready networks stay after that. End ends them, or the next agent,
// which does not know what they were used for.
func (p *Pool) Run(ctx context.Context) error {
	pool.Loop(ctx, p.wake, p.tend, p.pending)
	return nil
}

// tend does one thing and reports whether it did something. The next step may follow
// at once.
func (p *Pool) tend(ctx context.Context) bool {
	p.unwanted()
	if time.Since(p.swept) >= sweepEvery {
		p.swept = time.Now()
		p.sweep(ctx)
	}
	if !p.idleNode.Now() {
		return p.crowded() && p.remove(ctx)
	}
	if p.lacks() && p.make(ctx) {
		return true
	}
	return p.remove(ctx)
}

// unwanted ends ready networks whose holders are dead, and all ready networks while
// the node accepts no session.
func (p *Pool) unwanted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endDeadLocked()
	if p.deps.Wanted() {
		return
	}
	for _, n := range p.idle {
		p.endLocked(n)
	}
	p.idle = nil
}

// lacks reports whether a network is to be created now.
func (p *Pool) lacks() bool {
	if !p.deps.Wanted() || p.making.Waiting() {
		return false
	}
	ready, _, size := p.Counts()
	return ready < size
}

// pending reports whether there is work that waits for an idle node.
func (p *Pool) pending() bool {
	p.mu.Lock()
	removals := len(p.removals)
	p.mu.Unlock()
	return removals > 0 && !time.Now().Before(p.removeAt) || p.lacks()
}

// crowded reports whether too many holders wait for removal.
func (p *Pool) crowded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.removals) > maxRemovals
}

// make creates one network and reports whether it succeeded.
func (p *Pool) make(ctx context.Context) bool {
	begun := time.Now()
	n, err := p.makeOne(ctx)
	if ctx.Err() != nil && err != nil {
		return false
	}
	p.deps.Metrics.Made(time.Since(begun), err)
	if err != nil {
		level := slog.LevelDebug // logged once
		if p.making.Failed() {
			level = slog.LevelWarn
		}
		p.log.Log(ctx, level, "no network can be kept ready: the engine creates sessions' networks during their boot (will retry)", "err", err)
		return false
	}
	p.making.Succeeded()
	p.mu.Lock()
	p.idle = append(p.idle, n)
	p.mu.Unlock()
	return true
}

func (p *Pool) makeOne(ctx context.Context) (_ *network, err error) {
	ctx, cancel := context.WithTimeout(ctx, pool.EngineTimeout)
	defer cancel()
	spec := engine.Spec{
		Name: "holdfast-network-" + pool.NewID(), Image: Image, Labels: map[string]string{Label: string(p.cfg.Node), StoreLabel: p.cfg.Store},
		Restart: engine.RestartNo, NoNewPrivileges: true, NoCapabilities: true,
	}
	id, err := p.with.Create(ctx, spec, p.load)
	if err != nil {
		return nil, err // a container that was created nevertheless is found by its label
	}
	defer func() {
		if err != nil {
			p.queueRemoval(id)
		}
	}()
	c, holder, err := p.with.Start(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(c.Addresses) == 0 {
		holder.Close()
		return nil, errors.New("the engine's default network gives a container no address")
	}
	p.hold(holder)
	return &network{holder: holder, hostname: c.ID[:min(hostnameLen, len(c.ID))]}, nil
}

// queueRemoval queues a container that may run for removal, before the dead holders: the
// deadman waits for its end.
func (p *Pool) queueRemoval(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removals = slices.Insert(p.removals, 0, id)
}

// sweep finds containers of the node that this pool does not know: those of an earlier
// agent, and those whose creation returned an error. It is not known which sessions
// have used them, so they are removed.
func (p *Pool) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pool.EngineTimeout)
	defer cancel()
	list, err := p.deps.Engine.List(ctx, map[string]string{Label: string(p.cfg.Node)})
	if err != nil {
		p.log.Debug("looking for unused networks (will retry)", "err", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range list {
		known := p.used[c.ID] != nil || slices.Contains(p.removals, c.ID) ||
			slices.ContainsFunc(p.idle, func(n *network) bool { return n.holder.ID == c.ID })
		if its := c.Labels[StoreLabel]; !known && (its == "" || its == p.cfg.Store) {
			p.log.Info("removing a network that no session uses", "container", c.Name, "state", c.State)
			p.removals = append(p.removals, c.ID)
		}
	}
}

// remove removes one dead holder and reports whether it succeeded.
func (p *Pool) remove(ctx context.Context) bool {
	p.mu.Lock()
	n := len(p.removals)
	p.mu.Unlock()
	if n == 0 || time.Now().Before(p.removeAt) {
		return false
	}
	_, err := p.removeOne(ctx)
	if err != nil {
		p.removeAt = time.Now().Add(removeRetry)
	}
	return err == nil
}

// removeOne removes the first holder of the removals, which kills it if it runs. It
// returns how many are left. A holder that cannot be removed goes to the end of the
// list.
func (p *Pool) removeOne(ctx context.Context) (left int, err error) {
	p.mu.Lock()
	if len(p.removals) == 0 {
		p.mu.Unlock()
		return 0, nil
	}
	id := p.removals[0]
	p.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, pool.EngineTimeout)
	defer cancel()
	err = p.with.Remove(limited, id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removals = slices.DeleteFunc(p.removals, func(x string) bool { return x == id })
	if err != nil {
		p.removals = append(p.removals, id)
		if ctx.Err() == nil {
			p.log.Debug("removing the holder of an ended network (will retry)", "container", id, "err", err)
		}
	}
	return len(p.removals), err
}
