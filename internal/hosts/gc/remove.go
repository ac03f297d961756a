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
	"holdfast/internal/platform/tasks"
)

// remove carries out one deletion, or gives the reason for skipping it. An error
// ends the cycle: ctx is done, or the engine does not answer.
func (r *run) remove(ctx context.Context, d Deletion) (o Outcome, deleted bool, err error) {
	if r.site.trash == nil && r.site.noRoom {
		r.c.openTrash(&r.site) // a deletion may have freed space since
	}
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
	guess := r.c.stats.guess(t, d.Bytes)
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
		o.Reason = goneAlready // with all of its names
		return o, false, r.empty(ctx)
	}
	r.c.stats.learn(t, time.Duration(o.Locked))
	return o, true, r.empty(ctx)
}

// turn waits until a deletion may begin, and checks it again before the first
// file is touched. For a container the waiting includes the idle time of the
// removal itself. Only the container changes its files, so they are linked only
// when the removal is due and not while the container may be started again.
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
		waited, _, err := r.quiet(ctx, r.c.stats.pauseFor(r.c.stats.guess(t, d.Bytes)))
		o.Waited += holdfast.Millis(waited)
		if err != nil {
			return "", err
		}
	}
	// If the first name is already gone, the others may still exist.
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

// stays turns an error of freeing the trash into a notice, which does not end the
// cycle. It returns only ctx's error.
func (r *run) stays(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil {
		r.notice(err.Error())
	}
	return ctx.Err()
}

// slowly waits before each step of freeing: for spin-ups, and for the duration of
// a step, to leave disk time for others.
func (r *run) slowly(ctx context.Context) error {
	if _, forced, err := r.quiet(ctx, atLeast(0)); err != nil || forced {
		return err
	}
	return tasks.Sleep(ctx, stepPause)
}

const stepPause = 5 * time.Millisecond

// prepare counts the files that a deletion frees and, if link is set, links them
// into the trash.
func (r *run) prepare(ctx context.Context, d Deletion, link bool) (tally, error) {
	dirs, err := r.directories(ctx, d)
	if err != nil && ctx.Err() == nil {
		r.notice(fmt.Sprintf("the files of %s %s are not linked away: %v", d.Kind, d.Name, err))
	}
	if len(dirs) == 0 {
		return tally{}, ctx.Err()
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
			w.Names = 0 // counted again, from the bytes
			break
		}
		if ctx.Err() != nil {
			return w.tally, ctx.Err()
		}
		if err != nil {
			// The engine may have removed it meanwhile.
			r.c.d.Log.Debug("reading the files that a deletion frees", "dir", dir, "err", err)
		}
	}
	return w.tally, nil
}

// notice adds a sentence to the cycle unless it is already there.
func (r *run) notice(s string) {
	if !slices.Contains(r.cy.Notices, s) && len(r.cy.Notices) < maxOutcomes {
		r.cy.Notices = append(r.cy.Notices, s)
	}
}

// directories returns the directories that the engine frees with a deletion.
func (r *run) directories(ctx context.Context, d Deletion) ([]string, error) {
	if r.site.layers == nil {
		return nil, nil
	}
	switch d.Kind {
	case Images:
		return r.site.layers.image(ctx, d.Layers)
	case Stopped, Created:
		return r.site.layers.container(ctx, d.ID)
	}
	return nil, nil
}

// step is one call to the engine. A deletion consists of all its steps. An image
// loses its names one by one. It is removed by its id if it has no name or if its
// names have moved to another image meanwhile.
type step struct {
	ref  string // the name to remove, or ""
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

// oneStep waits for an idle engine, checks again whether the object is in use,
// and makes the call. reason says why the call was not made, or why the engine
// refused it.
func (r *run) oneStep(ctx context.Context, d Deletion, s step, guess time.Duration, o *Outcome) (reason string, err error) {
	for {
		waited, forced, err := r.quiet(ctx, r.c.stats.pauseFor(guess))
		o.Waited += holdfast.Millis(waited)
		if err != nil {
			return "", err
		}
		needed, reason, err := r.look(ctx, d, s)
		if reason != "" || err != nil || !needed {
			return reason, err
		}
		if idle, _ := r.c.gate.idle(); !idle && !forced {
			continue // a spin-up began during the check
		}
		o.Forced = o.Forced || forced
		break
	}
	o.calls++
	done := r.c.stats.open()
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
		// If the disk has no free block the engine cannot write its list of
		// names, but has already removed this name in memory (moby,
		// reference/store.go, Delete). The check before the next step shows the
		// result.
		o.failed = err.Error()
		return "", nil
	}
	return err.Error(), nil
}
