package e2b

import (
	"context"
	"errors"
	"time"

	"holdfast"
)

// endDue ends the sandboxes whose time is over.
func (d *Server) endDue(ctx context.Context) {
	now := time.Now()
	for _, s := range d.sandboxes.list() {
		if s.Paused || now.Before(s.Ends) || ctx.Err() != nil {
			continue
		}
		// Another node may have given it more time.
		s, err := d.sandboxes.reread(ctx, s.ID)
		if err != nil || s.Paused || now.Before(s.Ends) {
			continue
		}
		result := "killed"
		if s.Pause {
			result = "paused"
			err = d.pause(ctx, s)
		} else {
			err = d.kill(ctx, s)
		}
		if err != nil && ctx.Err() == nil {
			result = "failed"
			d.o.Log.Warn("ending a sandbox at the end of its time", "sandbox", s.ID, "err", err)
			// It is tried again, but not at each turn.
			_, _ = d.sandboxes.change(ctx, s.ID, func(s *sandbox) { s.Ends = now.Add(readEvery) })
		}
		d.o.Metrics.ended.WithLabelValues(result).Inc()
	}
}

// kill stops the session of a sandbox and forgets the sandbox. A session that has ended
// already is no error.
func (d *Server) kill(ctx context.Context, s sandbox) error {
	err := d.discard(ctx, &s)
	if err == nil {
		d.emit(isKilled, s)
	}
	if errors.Is(err, holdfast.ErrNotFound) { // another call was faster
		return nil
	}
	return err
}

// discard is kill without an event. holdfast.ErrNotFound if the sandbox is forgotten.
func (d *Server) discard(ctx context.Context, s *sandbox) error {
	_, err := d.o.Agent.StopSession(ctx, s.key())
	if err == nil || errors.Is(err, holdfast.ErrNotFound) {
		*s, err = d.sandboxes.drop(ctx, s.ID)
	}
	return err
}

// turn notes that a sandbox is paused, or until when one runs again.
func (d *Server) turn(ctx context.Context, id string, paused bool, ends time.Time) (sandbox, error) {
	changed, kind := false, isPaused
	if !paused {
		kind = isResumed
	}
	s, err := d.sandboxes.change(ctx, id, func(s *sandbox) {
		if changed = s.Paused != paused; paused {
			s.Paused = true
			return
		}
		s.Paused, s.Ends = false, ends
		if changed {
			s.Resumed = time.Now().UTC()
		}
	})
	if err == nil && changed {
		d.emit(kind, s)
	}
	return s, err
}

// pause suspends the session of a sandbox. If its memory could not be saved although the
// session ended, the sandbox is gone, and the error says why.
func (d *Server) pause(ctx context.Context, s sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, suspendLimit)
	defer cancel()
	if _, err := d.o.Agent.SuspendSession(ctx, s.key()); err != nil {
		return err
	}
	_, err := d.turn(ctx, s.ID, true, time.Time{})
	return err
}

// reconcile reads the store, forgets the sandboxes whose sessions are gone, and notices
// those that others have suspended or resumed.
func (d *Server) reconcile(ctx context.Context) error {
	if err := d.sandboxes.read(ctx); err != nil {
		return err
	}
	list := d.sandboxes.list()
	if len(list) == 0 {
		return nil
	}
	states, err := d.states(ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		state, found := states[s.ID]
		switch {
		case !found && time.Since(s.Started) > forgetAfter:
			// It may have begun to resume since the list.
			if _, err = d.o.Agent.Session(ctx, s.key()); errors.Is(err, holdfast.ErrNotFound) {
				if s, err = d.sandboxes.drop(ctx, s.ID); err == nil {
					d.emit(isKilled, s)
				}
			}
		case !found:
		case s.Paused && state == holdfast.Ready:
			_, err = d.turn(ctx, s.ID, false, time.Now().Add(resumeTimeout))
		case !s.Paused && state == holdfast.IsSuspended:
			_, err = d.turn(ctx, s.ID, true, time.Time{})
		}
		if err != nil && !errors.Is(err, holdfast.ErrNotFound) {
			return err
		}
	}
	return nil
}

// states returns the state of each session.
func (d *Server) states(ctx context.Context) (map[string]holdfast.State, error) {
	all, err := d.o.Agent.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	states := make(map[string]holdfast.State, len(all))
	for _, s := range all {
		states[string(s.Key)] = s.State
	}
	return states, nil
}

// running returns a sandbox whose session runs. One that may wake is resumed. Other
// sandboxes are the problem of ended.
func (d *Server) running(ctx context.Context, id string) (sandbox, error) {
	s, err := d.sandboxes.find(ctx, id)
	if errors.Is(err, holdfast.ErrNotFound) {
		return s, ended(id)
	}
	if err != nil || !s.Paused {
		return s, err
	}
	if !s.Resume {
		return s, ended(id)
	}
	return d.resume(ctx, s, resumeTimeout)
}

// resume resumes a paused sandbox. The time is that until its end.
func (d *Server) resume(ctx context.Context, s sandbox, timeout time.Duration) (sandbox, error) {
	if _, err := d.o.Agent.ResumeSession(ctx, s.key()); err != nil {
		return s, err
	}
	return d.turn(ctx, s.ID, false, time.Now().Add(timeout))
}
