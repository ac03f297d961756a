package drain

import (
	"context"
	"time"
)

// Saver is a Node whose sessions can take what they have in memory along.
type Saver interface {
	// Save saves what has to be saved of the sessions that Condemn closed, in
	// the time that ctx has. It returns how many were, and why others were not.
	Save(ctx context.Context) (saved int, lost []string)
}

// killReserve is what saving leaves of the time at least, for killing and giving
// up.
const killReserve = 3 * time.Second

// save has the sessions' memory saved, where that can be.
func (d *run) save(ctx context.Context, n Node, budget time.Duration) {
	s, ok := n.(Saver)
	if !ok {
		return
	}
	d.step("save", func() int {
		until, _ := ctx.Deadline()
		ctx, cancel := context.WithDeadline(ctx, until.Add(-min(budget/4, killReserve)))
		defer cancel()
		saved, lost := s.Save(ctx)
		for _, why := range lost {
			d.notice(why)
		}
		return saved
	})
}
