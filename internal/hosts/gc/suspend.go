package gc

import (
	"context"
	"time"
)

// gate lets deletions through while nothing spins up. One goroutine waits at a
// time; Run watches beside.
type gate struct {
	spinups  Spinups // nil: nobody tells
	arrivals *arrivals
	critical func() bool // the disk is over its critical mark now
}

// look is how often a wait looks at the disk again, and at the clock that others
// keep.
const look = time.Second

// idle reports whether nothing spins up, and for how long.
func (g *gate) idle() (bool, time.Duration) {
	if g.spinups == nil {
		return true, longestQuiet
	}
	n, since := g.spinups.UnderWay()
	return n == 0, max(time.Since(since), 0)
}

// wait returns once nothing has been spinning up for quiet. It returns at once
// with forced where the disk is over the critical mark. waited is the time spent.
func (g *gate) wait(ctx context.Context, quiet time.Duration) (waited time.Duration, forced bool, err error) {
	begin := time.Now()
	for {
		if err := ctx.Err(); err != nil {
			return time.Since(begin), false, err
		}
		var changed <-chan struct{}
		if g.spinups != nil {
			changed = g.spinups.Changed() // before the look: nothing is missed
		}
		idle, since := g.idle()
		if idle && since >= quiet {
			return time.Since(begin), false, nil
		}
		if g.critical() {
			return time.Since(begin), true, nil
		}
		next := look
		if idle {
			next = min(next, quiet-since)
		}
		timer := time.NewTimer(next)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// Run learns from the gaps between spin-ups until ctx is done.
func (g *gate) Run(ctx context.Context) error {
	if g.spinups == nil {
		<-ctx.Done()
		return nil
	}
	was, since := g.spinups.UnderWay()
	for {
		changed := g.spinups.Changed()
		n, turned := g.spinups.UnderWay()
		if was == 0 && turned.After(since) {
			g.arrivals.observe(turned.Sub(since))
		}
		was, since = n, turned
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
