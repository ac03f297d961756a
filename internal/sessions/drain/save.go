package drain

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
)

// Saver is a Node whose sessions can take what they have in memory along.
type Saver interface {
	// Choose decides, after MarkTerminating, which sessions are saved by a moment. Kill
	// and what follows are for the others then.
	Choose(until time.Time)

	// Save saves the chosen, and hands each over as soon as it is saved, or could
	// not be. It is called from another goroutine, beside Kill and what follows,
	// and Settle comes after it. What it could not give up is for a last Release.
	Save(ctx context.Context) holdfast.SaveReport
}

// killReserve is what saving leaves of the time at least, for killing and giving
// up.
const killReserve = 3 * time.Second

// saving is a Save under way.
type saving struct {
	begun time.Time
	done  chan holdfast.SaveReport
}

// beginSave has the sessions' memory saved, where that can be; the others do not
// wait for it. nil where there is nothing to wait for.
func (d *run) beginSave(ctx context.Context, n Node, budget time.Duration) *saving {
	s, ok := n.(Saver)
	if !ok {
		return nil
	}
	until, _ := ctx.Deadline()
	w := &saving{begun: time.Now(), done: make(chan holdfast.SaveReport, 1)}
	s.Choose(until.Add(-min(budget/4, killReserve)))
	go func() { w.done <- s.Save(ctx) }()
	return w
}

// endSave waits until all that could be saved is handed over.
func (d *run) endSave(ctx context.Context, n Node, w *saving) {
	if w == nil {
		return
	}
	r := <-w.done
	d.add(holdfast.Step{Name: "save", Took: holdfast.Millis(time.Since(w.begun)), Count: r.Memory.Saved})
	d.report.Memory = r.Memory
	d.killed(r.Kill)
	d.snapshot(r.Snapshots)
	d.report.Released += r.Released
	for _, l := range r.Memory.Lost {
		d.notice(fmt.Sprintf("the memory of session %s is lost: %s", l.Key, l.Reason))
	}
	if r.Released < len(r.Kill.Dead) {
		d.step("release", func() int { return d.release(ctx, n) })
	}
}

// merge is two reports of snapshots that were taken beside each other.
func merge(a, b holdfast.SnapshotReport) holdfast.SnapshotReport {
	if a.Count == 0 {
		return b
	}
	if b.Count == 0 {
		return a
	}
	return holdfast.SnapshotReport{
		Count: a.Count + b.Count, Took: max(a.Took, b.Took), Longest: max(a.Longest, b.Longest),
		Failed: slices.Concat(a.Failed, b.Failed),
	}
}
