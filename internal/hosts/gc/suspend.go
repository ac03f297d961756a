package gc

import (
	"context"
	"time"
)

// gate lets deletions through while no spin-up is in progress. One goroutine
// waits at a time; Run may run concurrently.
type gate struct {
	spinups  Spinups
	stats    *stats
	critical func() bool // reports whether the disk is above its critical mark
}

// look is the longest interval between two checks of the disk and of the spin-ups
// during a wait.
const look = time.Second

// idle reports whether no spin-up is in progress, and for how long.
func (g *gate) idle() (bool, time.Duration) {
	n, since := g.spinups.UnderWay()
	return n == 0, max(time.Since(since), 0)
}

// wait returns once no spin-up is in progress and p no longer requires a wait. If the disk is
// above the critical mark, it returns at once with forced set. waited is the time
// spent.
func (g *gate) wait(ctx context.Context, p pause) (waited time.Duration, forced bool, err error) {
	begin := time.Now()
	for {
		if err := ctx.Err(); err != nil {
			return time.Since(begin), false, err
		}
		changed := g.spinups.Changed() // before the check: no change is missed
		idle, since := g.idle()
		left := look
		if idle {
			left = p(since)
		}
		if left == 0 {
			return time.Since(begin), false, nil
		}
		if g.critical() {
			return time.Since(begin), true, nil
		}
		select {
		case <-changed:
		case <-time.After(min(left, look)):
		case <-ctx.Done():
		}
	}
}

// Run learns from the gaps between spin-ups until ctx is done.
func (g *gate) Run(ctx context.Context) error {
	was, since := g.spinups.UnderWay()
	for {
		changed := g.spinups.Changed()
		n, turned := g.spinups.UnderWay()
		if was == 0 && turned.After(since) {
			g.stats.observeGap(turned.Sub(since))
		}
		was, since = n, turned
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// noSpinups are the Spinups of a host on which they are unknown.
type noSpinups struct{}

func (noSpinups) UnderWay() (int, time.Time) { return 0, time.Time{} }

func (noSpinups) Changed() <-chan struct{} { return nil }
