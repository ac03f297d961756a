package drain

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
)

// killReserve is the minimum time that saving leaves for killing and giving up.
const killReserve = 3 * time.Second

// saving is a running Save.
type saving struct {
	begun time.Time
	done  chan holdfast.SaveReport
}

// beginSave starts to save the memory of sessions. The other sessions do not wait for
// it.
func beginSave(ctx context.Context, n Node, budget time.Duration) *saving {
	until, _ := ctx.Deadline()
	w := &saving{begun: time.Now(), done: make(chan holdfast.SaveReport, 1)}
	n.Choose(until.Add(-min(budget/4, killReserve)))
	go func() { w.done <- n.Save(ctx) }()
	return w
}

// endSave waits until all saved sessions are handed over.
func (d *run) endSave(ctx context.Context, n Node, w *saving) {
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

// merge returns the sum of two reports of snapshots that were taken at the same time.
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
