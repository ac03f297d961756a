package gc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
)

// Collect runs one cycle: plan, and carry out. told, which may be nil, is called
// after each deletion. The error says why the cycle ended early; the Cycle says
// what was done until then. ErrBusy.
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
		if err := c.recall(); err != nil { // what is learnt now is added to it
			return Cycle{}, err
		}
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
	saved   time.Time // the cycle, on disk
}

// all does everything between begin and end.
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
			continue // there is room by now
		}
		o, deleted, err := r.remove(ctx, d)
		if err != nil && !deleted {
			o.Reason = err.Error()
		}
		if err == nil || o.calls > 0 { // something was done
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

// next is the deletion to do next: the first, but on a critically full disk the
// one that harms least.
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

// harm orders deletions by how long they are likely to lock the engine. One that
// frees nothing, or nobody knows how much, comes after those that do.
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

// recover frees what an earlier cycle left in the trash.
func (r *run) recover(ctx context.Context) error {
	if r.site.trash == nil || r.site.trash.empty() {
		return nil
	}
	f, err := r.site.trash.free(ctx, r.wait)
	r.cy.Recovered = f.Files
	if f.Files > 0 {
		r.c.d.Log.Warn("freed what an earlier garbage collection had left", "files", f.Files, "bytes", f.Bytes)
	}
	return r.stays(ctx, err)
}

// wait returns when nothing spins up, and counts the time.
func (r *run) wait(ctx context.Context) error {
	_, _, err := r.quiet(ctx, 0)
	return err
}

// quiet is the gate's wait, with the time counted as suspension.
func (r *run) quiet(ctx context.Context, quiet time.Duration) (waited time.Duration, forced bool, err error) {
	waited, forced, err = r.c.gate.wait(ctx, quiet)
	if waited >= time.Millisecond {
		r.cy.Suspended += holdfast.Millis(waited)
		r.c.watch.suspended(waited)
		r.c.d.Metrics.suspended(waited)
	}
	return waited, forced, err
}

// share is the part of time that engines may be locked for deletions, unless the
// disk is critically full: whoever comes by chance then meets one that rarely.
const share = 0.02

// longestPace bounds the pause after one deletion, and is how long a host has to
// have been without spin-ups to need none.
const longestPace = 10 * time.Second

// pace waits after a deletion that locked the engine so long, unless there has
// been no spin-up for a while.
func (r *run) pace(ctx context.Context, locked time.Duration) error {
	if idle, since := r.c.gate.idle(); idle && since >= longestPace || r.c.gate.critical() {
		return nil
	}
	timer := time.NewTimer(min(time.Duration(float64(locked)*(1-share)/share), longestPace))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// note keeps what became of a deletion, before the next one begins.
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
		log.Warn("deleted beside spin-ups: the disk is critically full", "critical", r.c.cfg.Critical)
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

// saveEvery is how often a cycle is written while it runs. A sync of a busy disk
// takes its time, and in a hurry every deletion counts; all are in the log.
const saveEvery = time.Second

// save keeps the cycle as far as it has come. On a full disk it goes on without:
// what it deletes makes the room, and the store says it and has it in memory.
func (r *run) save() {
	if time.Since(r.saved) < saveEvery {
		return
	}
	_ = r.c.d.Store.SaveCycle(r.cy)
	r.saved = time.Now()
}

// end keeps the cycle as it ended. That it cannot be written is no failure of it.
func (r *run) end(failed error) {
	if disk, err := r.c.disk(r.site); err == nil {
		r.cy.After = disk
		r.c.d.Metrics.disk(disk, r.c.cfg.LevelOf(disk))
	}
	if failed != nil {
		r.cy.Error = failed.Error()
	}
	r.cy.Took, r.cy.Ended = holdfast.Millis(time.Since(r.cy.Begun)), true
	if r.cy.Trigger == ByMark && failed == nil && r.c.cfg.LevelOf(r.cy.After) == Critical {
		note := fmt.Sprintf("the disk is still over %v: what is left is in use, too young or kept", r.c.cfg.Critical)
		r.cy.Notices = append(r.cy.Notices, note)
		r.c.d.Log.Error(note)
	}
	r.c.d.Metrics.cycle(r.cy)
	if r.cy.Planned+r.cy.Recovered == 0 && failed == nil && r.cy.Trigger != ByHand {
		return // there was nothing to do, and there is nothing to tell
	}
	if err := r.c.d.Store.SaveCycle(r.cy); err != nil {
		r.notice(fmt.Sprintf("this cycle is not in the history yet: %v", err))
	}
	_ = r.c.saveHarm() // the store says it
}
