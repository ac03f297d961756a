package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// remove carries one deletion out, or says why not. The error is for what ends
// the cycle: ctx is done, or the engine is away.
func (r *run) remove(ctx context.Context, d Deletion) (o Outcome, deleted bool, err error) {
	r.c.reopenTrash(&r.site)
	o = Outcome{Kind: d.Kind, ID: d.ID, Name: d.Name, Reason: d.Reason, At: time.Now().UTC(), Bytes: d.Bytes}
	steps := r.steps(d)
	reason, err := r.turn(ctx, d, steps[0], &o)
	if err != nil {
		return o, false, err
	}
	if reason != "" {
		o.Reason = reason
		return o, false, nil
	}
	t, err := r.prepare(ctx, d, r.c.links(r.site))
	if err != nil {
		return o, false, err
	}
	o.Names, o.Linked = t.Names, t.Linked
	guess := r.c.rates.guess(t, d.Bytes)
	o.Guess = holdfast.Millis(guess)
	for i, step := range steps {
		reason, err := r.oneStep(ctx, d, step, guess, &o)
		if err != nil {
			return o, false, errors.Join(err, r.empty(ctx))
		}
		if reason != "" {
			o.Reason, o.Partial = cmp.Or(o.failed, reason), i > 0
			return o, false, r.empty(ctx)
		}
	}
	if o.calls == 0 {
		o.Reason = goneAlready // with every name
		return o, false, r.empty(ctx)
	}
	r.c.rates.learn(t, time.Duration(o.Locked))
	return o, true, r.empty(ctx)
}

// turn waits until something may be done for a deletion, and looks whether it is
// still right before a single file is touched. What a container wrote is changed
// by nobody else, so that it is linked only once the time for the removal itself
// has come, and not while the container may be started again.
func (r *run) turn(ctx context.Context, d Deletion, first step, o *Outcome) (reason string, err error) {
	if err := r.wait(ctx); err != nil {
		return "", err
	}
	if d.Kind == Stopped || d.Kind == Created {
		t, err := r.prepare(ctx, d, false)
		if err != nil {
			return "", err
		}
		if r.c.links(r.site) {
			t.Linked = t.Names
		}
		waited, _, err := r.quiet(ctx, r.c.arrivals.quietFor(r.c.rates.guess(t, d.Bytes)))
		o.Waited += holdfast.Millis(waited)
		if err != nil {
			return "", err
		}
	}
	// That the first name has gone by itself says nothing about the others.
	_, reason, err = r.look(ctx, d, first)
	return reason, err
}

// empty frees the trash.
func (r *run) empty(ctx context.Context) error {
	if r.site.trash == nil {
		return nil
	}
	f, err := r.site.trash.free(ctx, r.slowly)
	r.c.d.Metrics.freed(f)
	return r.stays(ctx, err)
}

// stays makes a notice of why something stays in the trash: that ends nothing.
// The error is ctx's.
func (r *run) stays(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil {
		r.notice(err.Error())
	}
	return ctx.Err()
}

// slowly waits before each step of freeing: for spin-ups, and for as long as a
// step takes, so that the disk has time for others.
func (r *run) slowly(ctx context.Context) error {
	if _, forced, err := r.quiet(ctx, 0); err != nil || forced {
		return err
	}
	timer := time.NewTimer(stepPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

const stepPause = 5 * time.Millisecond

// prepare counts what will go with a deletion, and links it away.
func (r *run) prepare(ctx context.Context, d Deletion, link bool) (tally, error) {
	dirs := r.directories(d)
	if len(dirs) == 0 {
		return tally{}, nil
	}
	w := &walker{ctx: ctx, wait: r.wait}
	if link {
		b, err := r.site.trash.begin(time.Now())
		switch {
		case err == nil:
			defer b.close()
			w.batch = b
		case ctx.Err() == nil:
			r.notice(fmt.Sprintf("files are not linked away: %v", err))
		}
	}
	for _, dir := range dirs {
		err := w.walk(dir)
		if errors.Is(err, errFull) {
			r.notice(fmt.Sprintf("not all files of %s %s were linked away: %v", d.Kind, d.Name, err))
			w.batch = nil
			w.Names = 0 // counted anew, from the bytes
			break
		}
		if ctx.Err() != nil {
			return w.tally, ctx.Err()
		}
		if err != nil {
			// The engine may have removed it meanwhile.
			r.c.d.Log.Debug("looking at what a deletion will free", "dir", dir, "err", err)
		}
	}
	return w.tally, nil
}

// notice keeps a sentence for the cycle, once.
func (r *run) notice(s string) {
	if !slices.Contains(r.cy.Notices, s) && len(r.cy.Notices) < maxOutcomes {
		r.cy.Notices = append(r.cy.Notices, s)
	}
}

// directories are those whose files an engine will free with a deletion.
func (r *run) directories(d Deletion) []string {
	if r.site.layers == nil {
		return nil
	}
	var dirs []string
	switch d.Kind {
	case Images:
		for _, l := range d.Layers {
			if dir, ok := r.site.layers.layer(l); ok {
				dirs = append(dirs, dir)
			}
		}
	case Stopped, Created:
		if dir, ok := r.site.layers.container(d.ID); ok {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// step is one call of the engine; all of a deletion's have to be made. An image
// loses its names one by one, and is removed by its id where it has none or they
// have moved to another image meanwhile.
type step struct {
	ref  string // the name that goes, or ""
	call func(context.Context) error
}

func (r *run) steps(d Deletion) []step {
	e := r.c.d.Engine
	switch d.Kind {
	case Stopped, Created:
		return []step{{"", func(ctx context.Context) error { return e.RemoveStopped(ctx, d.ID) }}}
	case Networks:
		return []step{{"", func(ctx context.Context) error { return e.RemoveUnusedNetwork(ctx, d.ID) }}}
	case Volumes:
		return []step{{"", func(ctx context.Context) error { return e.RemoveVolume(ctx, d.ID) }}}
	case BuildCache:
		return []step{{"", func(ctx context.Context) error {
			_, err := e.PruneBuildCache(ctx, d.keepFor, d.reserved)
			return err
		}}}
	}
	var steps []step
	for _, ref := range d.Refs {
		steps = append(steps, step{ref, func(ctx context.Context) error { return e.RemoveImage(ctx, ref) }})
	}
	return append(steps, step{"", func(ctx context.Context) error { return e.RemoveImage(ctx, d.ID) }})
}

// oneStep waits for its time, looks again whether the object is in use, and makes
// the call. reason says why it was not made, or what the engine had against it.
func (r *run) oneStep(ctx context.Context, d Deletion, s step, guess time.Duration, o *Outcome) (reason string, err error) {
	for {
		waited, forced, err := r.quiet(ctx, r.c.arrivals.quietFor(guess))
		o.Waited += holdfast.Millis(waited)
		if err != nil {
			return "", err
		}
		needed, reason, err := r.look(ctx, d, s)
		if reason != "" || err != nil || !needed {
			return reason, err
		}
		if idle, _ := r.c.gate.idle(); !idle && !forced {
			continue // one came while we looked
		}
		o.Forced = o.Forced || forced
		break
	}
	o.calls++
	done := r.c.watch.open()
	err = s.call(ctx)
	o.Locked += holdfast.Millis(done())
	switch {
	case err == nil:
		return "", nil
	case errors.Is(err, holdfast.ErrNotFound) && s.ref != "":
		return "", nil
	case errors.Is(err, holdfast.ErrNotFound):
		return goneAlready, nil
	case errors.Is(err, engine.ErrRefused):
		return err.Error(), nil
	case errors.Is(err, holdfast.ErrEngine) || ctx.Err() != nil:
		return "", err
	}
	r.c.d.Log.Warn("the engine could not remove it", "kind", d.Kind, "name", d.Name, "err", err)
	if s.ref != "" {
		// On a disk without a free block the engine cannot write its list of
		// names, and has let go of this one all the same (moby,
		// reference/store.go, Delete). The look before the next step tells.
		o.failed = err.Error()
		return "", nil
	}
	return err.Error(), nil
}
