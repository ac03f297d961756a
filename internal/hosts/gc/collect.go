package gc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// Collect runs one cycle: it plans and carries the plan out. told is called after
// each deletion and may be nil. If the cycle ends early, the error gives the
// cause and the Cycle lists what was done until then. Collect returns ErrBusy
// while another collection runs on the engine.
func (c *Collector) Collect(ctx context.Context, why Trigger, told func(Outcome, bool)) (Cycle, error) {
	if !c.cycle.TryLock() {
		return Cycle{}, ErrBusy
	}
	defer c.cycle.Unlock()
	s, disk, err := c.look(ctx)
	if err != nil {
		return Cycle{}, err
	}
	if !c.running.Load() {
		if err := c.loadStats(); err != nil { // new observations are added to it
			return Cycle{}, err
		}
		learning, stop := context.WithCancel(ctx)
		var learns sync.WaitGroup
		learns.Go(func() { _ = c.gate.Run(learning) })
		defer func() { stop(); learns.Wait() }()
	}
	lock, err := lockCycle(s.local, c.d.LockDir)
	if err != nil {
		return Cycle{}, err
	}
	defer lock.Close()
	c.openTrash(&s)

	r := &run{c: c, site: s, told: told, cy: Cycle{
		Begun: time.Now().UTC(), Trigger: why, Before: disk, After: disk, Deleted: []Outcome{}, Skipped: []Outcome{},
	}}
	if !c.links(s) && s.why != "" {
		r.cy.Notices = append(r.cy.Notices, s.why)
	}
	err = r.all(ctx)
	r.end(err)
	return r.cy, err
}

// run is one cycle.
type run struct {
	c    *Collector
	site site
	cy   Cycle
	told func(Outcome, bool)

	planned time.Time
	saved   time.Time // the last time the cycle was written to disk
}

// all carries out the cycle from recovery of the trash to the last deletion.
func (r *run) all(ctx context.Context) error {
	if err := r.recover(ctx); err != nil {
		return err
	}
	disk, err := r.c.disk(r.site)
	if err != nil {
		return err
	}
	p, err := r.c.plan(ctx, r.site, disk)
	if err != nil {
		return err
	}
	r.planned, r.cy.Planned = p.At, len(p.Deletions)
	r.cy.Notices = append(r.cy.Notices, p.Notices...)
	if r.cy.Planned > 0 {
		r.save()
	}
	for left := p.Deletions; len(left) > 0; {
		disk, err := r.c.disk(r.site)
		if err != nil {
			return err
		}
		r.cy.After = disk
		i := next(left, r.c.cfg.urgent(disk))
		d := left[i]
		left = slices.Delete(left, i, i+1)
		if d.Goal.reached(disk) {
			continue // enough space is free by now
		}
		o, deleted, err := r.remove(ctx, d)
		if err != nil && !deleted {
			o.Reason = err.Error()
		}
		if err == nil || o.calls > 0 { // the engine was called
			r.note(o, deleted)
		}
		if err != nil {
			return err
		}
		if deleted && len(left) > 0 && d.Kind != Networks && d.Kind != Volumes {
			if err := r.pace(ctx, time.Duration(o.Locked)); err != nil {
				return err
			}
		}
	}
	return nil
}

// next returns the index of the next deletion: the first, or on a critically full
// disk the one with the shortest expected lock.
func next(left []Deletion, critical bool) int {
	if !critical {
		return 0
	}
	best := 0
	for i := range left {
		if harm(left[i], left[best]) < 0 {
			best = i
		}
	}
	return best
}

// harm orders deletions by how long they are likely to lock the engine. Deletions
// that free nothing, or an unknown amount, come last.
func harm(a, b Deletion) int {
	rank := func(d Deletion) int {
		return slices.Index([]Kind{Networks, Created, Volumes, Stopped, Images, BuildCache}, d.Kind)
	}
	useless := func(d Deletion) int {
		if d.Kind == Images && d.Bytes <= 0 {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(useless(a), useless(b)), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Bytes, b.Bytes))
}

// recover frees the files that an earlier cycle left in the trash.
func (r *run) recover(ctx context.Context) error {
	if r.site.trash == nil || r.site.trash.empty() {
		return nil
	}
	f, err := r.site.trash.free(ctx, r.wait)
	r.cy.Recovered = f.Files
	if f.Files > 0 {
		r.c.d.Log.Warn("freed files that an earlier garbage collection left in the trash", "files", f.Files, "bytes", f.Bytes)
	}
	return r.stays(ctx, err)
}

// wait returns when no spin-up is in progress. It adds the waiting time to the
// cycle.
func (r *run) wait(ctx context.Context) error {
	_, _, err := r.quiet(ctx, atLeast(0))
	return err
}

// quiet calls the gate's wait and adds the waiting time to the cycle's
// suspension.
func (r *run) quiet(ctx context.Context, p pause) (waited time.Duration, forced bool, err error) {
	waited, forced, err = r.c.gate.wait(ctx, p)
	if waited >= time.Millisecond {
		r.cy.Suspended += holdfast.Millis(waited)
		r.c.stats.suspended(waited)
		r.c.d.Metrics.suspended(waited)
	}
	return waited, forced, err
}

// share is the fraction of time for which deletions may lock the engine, unless
// the disk is critically full. A spin-up that begins at a random moment meets a
// deletion with this probability.
const share = 0.02

// longestPace is the longest pause after a deletion. No pause is needed if the
// host has had no spin-up for this long.
const longestPace = 10 * time.Second

// pace pauses after a deletion that locked the engine for locked, unless the host
// has been idle for longestPace or the disk is critically full.
func (r *run) pace(ctx context.Context, locked time.Duration) error {
	if idle, since := r.c.gate.idle(); idle && since >= longestPace || r.c.gate.critical() {
		return nil
	}
	return tasks.Sleep(ctx, min(time.Duration(float64(locked)*(1-share)/share), longestPace))
}

// note records the outcome of a deletion before the next one begins.
func (r *run) note(o Outcome, deleted bool) {
	list, result := &r.cy.Skipped, "skipped"
	if deleted {
		list, result = &r.cy.Deleted, "deleted"
	}
	r.cy.add(list, o)
	r.cy.Took = holdfast.Millis(time.Since(r.cy.Begun))
	r.c.d.Metrics.deletion(o, result)
	log := r.c.d.Log.With("kind", o.Kind, "name", o.Name, "reason", o.Reason, "locked", o.Locked, "waited", o.Waited)
	switch {
	case o.Forced && deleted:
		log.Warn("deleted during spin-ups: the disk is critically full", "critical", r.c.cfg.Critical)
	case deleted:
		log.Info("deleted", "linked", o.Linked)
	default:
		log.Info("not deleted")
	}
	r.save()
	if r.told != nil {
		r.told(o, deleted)
	}
}

// saveEvery is the interval at which a running cycle is written. A sync on a busy
// disk takes time, and on a full disk deletions must not wait for it. The log has
// every deletion.
const saveEvery = time.Second

// save writes the cycle as far as it has come. A write error does not stop the
// cycle, because its deletions free the space: the store logs the error and keeps
// the cycle in memory.
func (r *run) save() {
	if time.Since(r.saved) < saveEvery {
		return
	}
	_ = r.c.d.Store.SaveCycle(r.cy)
	r.saved = time.Now()
}

// end records the end of the cycle. A failed write of the history does not fail
// the cycle.
func (r *run) end(failed error) {
	if disk, err := r.c.disk(r.site); err == nil {
		r.cy.After = disk
		r.c.d.Metrics.disk(disk, r.c.cfg.LevelOf(disk))
	}
	if failed != nil {
		r.cy.Error = failed.Error()
	}
	r.cy.Took, r.cy.Ended = holdfast.Millis(time.Since(r.cy.Begun)), true
	if r.cy.Trigger == ByThreshold && failed == nil && r.c.cfg.LevelOf(r.cy.After) == Critical {
		note := fmt.Sprintf("the disk is still over %v: what is left is in use, too young or kept", r.c.cfg.Critical)
		r.cy.Notices = append(r.cy.Notices, note)
		r.c.d.Log.Error(note)
	}
	r.c.d.Metrics.cycle(r.cy)
	if r.cy.Planned+r.cy.Recovered == 0 && failed == nil && r.cy.Trigger != ByRequest {
		return // nothing was done: nothing to record
	}
	if err := r.c.d.Store.SaveCycle(r.cy); err != nil {
		r.notice(fmt.Sprintf("this cycle is not in the history yet: %v", err))
	}
	_ = r.c.stats.save(r.c.d.Store.SaveHarm) // the store logs the error
}
