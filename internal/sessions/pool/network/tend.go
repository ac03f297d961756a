package network

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/pool"
)

const (
	sweepEvery  = time.Minute           // interval of the search for holders of the node that the pool does not know
	removeRetry = time.Second           // after a removal that failed
	endPause    = 20 * time.Millisecond // likewise, in End
	maxRemovals = 64                    // that wait for an idle node before their removal
)

// Run makes holders and ready networks, and removes ended holders, until ctx is done. It
// ends the holders and the networks that no container has joined; those of running
// containers stay, for the next agent.
func (p *Pool) Run(ctx context.Context) error {
	p.mu.Lock()
	p.closed = false
	p.mu.Unlock()
	pool.Loop(ctx, p.wake, p.tend, p.pending)
	p.close()
	return nil
}

// close ends all holders and all networks that no container has joined.
func (p *Pool) close() {
	p.mu.Lock()
	p.closed = true
	p.endReadyLocked()
	holders := p.free
	p.free = nil
	for _, n := range p.used {
		if n.hold != nil { // of a boot that is given up, whose Drop may follow
			n.hold.stop()
			n.ns.Close()
			p.removals = append(p.removals, n.hold.target.ID)
		}
	}
	p.mu.Unlock()
	for _, h := range holders {
		p.endHolder(h)
	}
}

// endHolder ends a holder and queues its container for removal.
func (p *Pool) endHolder(h *hold) {
	id := h.target.ID
	h.end()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.holders, id)
	p.removals = append(p.removals, id)
}

// endDeadLocked removes free holders that have died.
func (p *Pool) endDeadLocked() {
	p.free = slices.DeleteFunc(p.free, func(h *hold) bool {
		if !h.target.Init().Exited() {
			return false
		}
		delete(p.holders, h.target.ID)
		p.removals = append(p.removals, h.target.ID)
		h.end()
		return true
	})
}

// endReadyLocked ends all ready networks.
func (p *Pool) endReadyLocked() {
	for _, ns := range p.ready {
		ns.File.Close()
	}
	p.ready = nil
}

// tend does one thing and reports whether it did something. The next step may follow
// at once.
func (p *Pool) tend(ctx context.Context) bool {
	p.unwanted()
	if time.Since(p.swept) >= sweepEvery {
		p.swept = time.Now()
		p.sweep(ctx)
	}
	idle := p.idleNode.Now()
	switch {
	case p.lacksHolder() && p.addHolder(ctx):
		return true
	case !idle:
		return p.crowded() && p.remove(ctx)
	case p.lacksNetwork() && p.addNetwork():
		return true
	}
	p.cleanDropped()
	return p.remove(ctx)
}

// unwanted ends dead holders, and all ready networks while the node accepts no session.
func (p *Pool) unwanted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endDeadLocked()
	if !p.deps.Wanted() {
		p.endReadyLocked()
	}
}

// lacksHolder reports whether a holder is to be made now, also beside boots: a holder costs as
// much as one of them, and saves half of each that has it.
func (p *Pool) lacksHolder() bool {
	if !p.deps.Wanted() || p.making.Waiting() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.holders) < p.wanted
}

func (p *Pool) lacksNetwork() bool {
	if !p.deps.Wanted() || p.filling.Waiting() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.holders) > 0 && len(p.ready) < p.cfg.Ready
}

// pending reports whether there is work that waits for an idle node.
func (p *Pool) pending() bool {
	p.mu.Lock()
	removals := len(p.removals)
	p.mu.Unlock()
	return removals > 0 && !time.Now().Before(p.removeAt) || p.lacksHolder() || p.lacksNetwork()
}

// crowded reports whether too many holders wait for removal.
func (p *Pool) crowded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.removals) > maxRemovals
}

// addHolder makes one holder and reports whether it succeeded.
func (p *Pool) addHolder(ctx context.Context) bool {
	h, id, err := p.makeHolder(ctx)
	if ctx.Err() == nil {
		p.setProblem(err)
	}
	if err == nil {
		p.making.Succeeded()
		p.mu.Lock()
		p.holders[id] = true
		p.mu.Unlock()
		p.release(h)
		return true
	}
	if id != "" {
		p.mu.Lock()
		p.removals = append(p.removals, id)
		p.mu.Unlock()
	}
	if ctx.Err() == nil {
		p.log.Log(ctx, p.failed(&p.making), "no holder of networks can be made: the engine creates sessions' networks during their boot (will retry)", "err", err)
	}
	return false
}

// addNetwork makes one ready network and reports whether it succeeded.
func (p *Pool) addNetwork() bool {
	ns, err := p.makeNetwork()
	if err != nil {
		p.log.Log(context.Background(), p.failed(&p.filling), "no network can be kept ready (will retry)", "err", err)
		return false
	}
	p.filling.Succeeded()
	p.giveBack(ns)
	return true
}

// failed delays the next attempt, and returns the level of the log: a failure is a warning
// once.
func (p *Pool) failed(b *pool.Backoff) slog.Level {
	if b.Failed() {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// sweep finds holders of the node that this pool does not know: those of an earlier agent,
// and those whose creation returned an error. It removes files of networks that are gone.
func (p *Pool) sweep(ctx context.Context) {
	if err := p.sweepFiles(); err != nil {
		p.log.Debug("removing the files of ended networks (will retry)", "err", err)
	}
	ctx, cancel := context.WithTimeout(ctx, pool.EngineTimeout)
	defer cancel()
	list, err := p.deps.Engine.List(ctx, map[string]string{Label: string(p.cfg.Node)})
	if err != nil {
		p.log.Debug("looking for unknown holders (will retry)", "err", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range list {
		if its := c.Labels[StoreLabel]; !p.knownLocked(c) && (its == "" || its == p.cfg.Store) {
			p.log.Debug("removing a holder of an earlier agent", "container", c.Name, "state", c.State)
			p.removals = append(p.removals, c.ID)
		}
	}
}

func (p *Pool) knownLocked(c engine.Container) bool {
	return p.holders[c.ID] || slices.Contains(p.removals, c.ID)
}

// droppedAge is how long the kernel has to remove the device of a network whose processes
// are dead: it does so in batches, in parallel to other work.
const droppedAge = 5 * time.Second

// cleanDropped removes the devices and files of networks whose sessions have ended for a
// while. The kernel removes a device with its namespace, a moment after the last process; a
// device that another process keeps (nsenter(1)) is removed here.
func (p *Pool) cleanDropped() {
	p.mu.Lock()
	list := p.dropped
	p.dropped = nil
	p.mu.Unlock()
	var left []dropped
	for _, d := range list {
		if time.Since(d.at) < droppedAge {
			left = append(left, d)
			continue
		}
		if err := p.deps.Net.Disconnect(d.addr, d.index); err != nil {
			p.log.Debug("removing the device of an ended network (will retry)", "err", err)
			left = append(left, d)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped = append(p.dropped, left...)
}

// remove removes one ended holder and reports whether it succeeded.
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

// removeOne removes the first of the ended holders, and returns how many are left. One
// that cannot be removed goes to the end of the list.
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
	}
	return len(p.removals), err
}

// End removes the containers of all holders, which Run has ended, until ctx is done. It may
// be called again. The next agent finds what is left. End is called after Run, when there
// are no sessions.
func (p *Pool) End(ctx context.Context) error {
	p.close()
	for {
		left, err := p.removeOne(ctx)
		if left == 0 || err != nil && tasks.Sleep(ctx, endPause) != nil {
			return err
		}
	}
}
