package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// maxError is the maximum length of an error in a group's record, in bytes.
const maxError = 1024

// BeginReplace asks the keeper of a group to replace the given replicas one by one, all that
// serve if there are none. timeout bounds the start of each new replica. Errors:
// holdfast.ErrNotFound, or holdfast.ErrBusy if a replacement is under way.
func (g *Groups) BeginReplace(ctx context.Context, name string, keys []holdfast.SessionKey, timeout time.Duration) error {
	return g.change(ctx, name, func(one *holdfast.Group) error {
		if one.Replacing.Active() {
			return holdfast.WithHint(fmt.Errorf("group %s: a replacement is under way since %s: %w", name, one.Replacing.Report.Started.Format(time.RFC3339), holdfast.ErrBusy),
				"wait for its end, or end it after the present replica with `holdfast session replace "+name+" --stop`")
		}
		todo := append([]holdfast.SessionKey{}, keys...)
		for _, r := range one.Replicas {
			if len(keys) == 0 && r.State == holdfast.ReplicaServing {
				todo = append(todo, r.Key)
			}
		}
		for _, key := range todo {
			if r := one.Replica(key); r == nil || r.State != holdfast.ReplicaServing {
				return fmt.Errorf("group %s has no replica %s that serves: %w", name, key, holdfast.ErrNotFound)
			}
		}
		one.Replacing = &holdfast.GroupReplacement{
			Report:  holdfast.ReplaceReport{Started: time.Now().UTC(), Rows: []holdfast.Replacement{}, Gone: []holdfast.SessionKey{}, Unbegun: []holdfast.SessionKey{}},
			Timeout: holdfast.Millis(timeout), Todo: todo,
		}
		return nil
	})
}

// StopReplace ends the group's replacement after the replica whose turn it is.
// holdfast.ErrNotFound if there is no replacement.
func (g *Groups) StopReplace(ctx context.Context, name string) error {
	return g.change(ctx, name, func(one *holdfast.Group) error {
		if !one.Replacing.Active() {
			return fmt.Errorf("group %s: no replacement is under way: %w", name, holdfast.ErrNotFound)
		}
		one.Replacing.Stop = true
		return nil
	})
}

// errElsewhere ends a step whose phase another keeper has ended.
var errElsewhere = errors.New("another node continues the replacement")

// replace does the steps of the group's replacement until it has ended. After an error the
// next call continues.
func (k *keeper) replace(ctx context.Context) error {
	for {
		one, err := k.read(ctx, k.spec.Name)
		if err != nil {
			return err
		}
		r := one.Replacing
		if !r.Active() {
			return nil
		}
		switch r.Phase {
		case "":
			err = k.next(ctx)
		case holdfast.ReplaceStarting:
			err = k.startNew(ctx, r)
		case holdfast.ReplaceCatchingUp:
			err = k.catchUpNew(ctx, r)
		case holdfast.ReplaceJoining:
			err = k.joinNew(ctx, r)
		case holdfast.ReplaceDraining:
			err = k.drainOld(ctx, r)
		case holdfast.ReplaceStopping:
			err = k.stopOld(ctx, r)
		default:
			err = fmt.Errorf("phase %q is of a later version", r.Phase)
		}
		if err != nil {
			return err
		}
	}
}

// next begins the replacement of the next replica, or ends the whole.
func (k *keeper) next(ctx context.Context) error {
	return k.change(ctx, k.spec.Name, func(one *holdfast.Group) error {
		r := one.Replacing
		if !r.Active() || r.Phase != "" {
			return nil
		}
		now := time.Now().UTC()
		if r.Stop || r.Report.Failed() > 0 || len(r.Todo) == 0 {
			r.Report.Unbegun, r.Todo = append(r.Report.Unbegun, r.Todo...), []holdfast.SessionKey{}
			r.Ended, r.Report.Took = now, holdfast.Millis(now.Sub(r.Report.Started))
			return nil
		}
		old := r.Todo[0]
		r.Todo = r.Todo[1:]
		if there := one.Replica(old); there == nil || there.State != holdfast.ReplicaServing {
			r.Report.Gone = append(r.Report.Gone, old)
			return nil
		}
		key := freeKey(one)
		one.Replicas = append(one.Replicas, holdfast.Replica{Key: key, State: holdfast.ReplicaJoining})
		r.Now = holdfast.Replacement{Key: key, Template: k.spec.Name, Started: now, Replica: &holdfast.ReplicaPhases{Old: old}}
		r.OldEpoch, r.Phase, r.Since, r.Progress = 0, holdfast.ReplaceStarting, now, ""
		return nil
	})
}

// ended writes the end of a phase, and the next one. f gets the record, the replacement,
// and the time that the phase took.
func (k *keeper) ended(ctx context.Context, was *holdfast.GroupReplacement, next holdfast.ReplacePhase, f func(*holdfast.Group, *holdfast.GroupReplacement, holdfast.Millis)) error {
	return k.change(ctx, k.spec.Name, func(one *holdfast.Group) error {
		r := one.Replacing
		if !r.Active() || r.Phase != was.Phase || r.Now.Key != was.Now.Key || !r.Since.Equal(was.Since) {
			return errElsewhere
		}
		now := time.Now().UTC()
		took := holdfast.Millis(max(0, now.Sub(r.Since))) // another node may have begun it, by its own clock
		r.Phase, r.Since, r.Progress = next, now, ""
		f(one, r, took)
		return nil
	})
}

// startNew starts the new replica. Errors that pass are tried again until the timeout.
func (k *keeper) startNew(ctx context.Context, r *holdfast.GroupReplacement) error {
	if old, err := k.deps.Store.Get(ctx, r.Now.Replica.Old); err == nil {
		r.Now.From = old.Node
	}
	limited, cancel := context.WithDeadline(ctx, r.Since.Add(time.Duration(r.Timeout)))
	defer cancel()
	o, err := k.deps.Sessions.Start(limited, r.Now.Key, k.spec.Name)
	for err != nil && passes(err) && tasks.Sleep(limited, retryFirst) == nil {
		o, err = k.deps.Sessions.Start(limited, r.Now.Key, k.spec.Name)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return k.failed(ctx, r, err)
	}
	return k.ended(ctx, r, holdfast.ReplaceCatchingUp, func(_ *holdfast.Group, to *holdfast.GroupReplacement, _ holdfast.Millis) {
		to.Now.From, to.Now.To, to.Now.Epoch, to.Now.Boot = r.Now.From, o.Node, o.Epoch, o.Boot
	})
}

// passes reports whether a later start may succeed although nothing is repaired by hand.
func passes(err error) bool {
	return slices.ContainsFunc([]error{holdfast.ErrStore, holdfast.ErrEngine, holdfast.ErrBusy, holdfast.ErrDraining}, func(target error) bool { return errors.Is(err, target) })
}

// catchUpNew waits until the new replica has caught up, and puts it into the rotation.
func (k *keeper) catchUpNew(ctx context.Context, r *holdfast.GroupReplacement) error {
	o, err := k.deps.Store.Get(ctx, r.Now.Key)
	if err != nil && !errors.Is(err, holdfast.ErrNotFound) {
		return err
	}
	if err != nil || o.Epoch != r.Now.Epoch || o.State != holdfast.Ready {
		return k.failed(ctx, r, fmt.Errorf("replica %s: %w", r.Now.Key, errEnded))
	}
	err = k.catchUp(ctx, o, r.Since.Add(k.spec.CatchUpLimit), func(line string) { k.tell(ctx, r, line) })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return k.failed(ctx, r, err)
	}
	return k.ended(ctx, r, holdfast.ReplaceJoining, func(one *holdfast.Group, to *holdfast.GroupReplacement, took holdfast.Millis) {
		to.Now.Replica.CaughtUp = took
		if there := one.Replica(to.Now.Key); there != nil {
			there.State, there.Epoch = holdfast.ReplicaServing, to.Now.Epoch
		}
	})
}

// tell writes the last line of caught_up into the record. An error costs a line of progress.
func (k *keeper) tell(ctx context.Context, was *holdfast.GroupReplacement, line string) {
	err := k.change(ctx, k.spec.Name, func(one *holdfast.Group) error {
		r := one.Replacing
		if !r.Active() || r.Phase != was.Phase || r.Now.Key != was.Now.Key || r.Progress == line {
			return errElsewhere
		}
		r.Progress = line
		return nil
	})
	if err != nil && !errors.Is(err, errElsewhere) {
		k.deps.Log.Debug("the progress of a replacement is not written", "group", k.spec.Name, "err", err)
	}
}

// joinNew takes the old replica out of the rotation, which the new one has joined. A new one
// that has ended meanwhile fails the replacement, and the old one stays.
func (k *keeper) joinNew(ctx context.Context, r *holdfast.GroupReplacement) error {
	owners, err := k.deps.Store.Find(ctx, r.Now.Key, r.Now.Replica.Old)
	if err != nil {
		return err
	}
	var oldEpoch holdfast.Epoch
	serves := false
	for _, o := range owners {
		if o.Key == r.Now.Key {
			serves = o.Epoch == r.Now.Epoch && o.State == holdfast.Ready
		} else {
			oldEpoch = o.Epoch
		}
	}
	if !serves {
		return k.failed(ctx, r, fmt.Errorf("replica %s ended as soon as it had caught up", r.Now.Key))
	}
	return k.ended(ctx, r, holdfast.ReplaceDraining, func(one *holdfast.Group, to *holdfast.GroupReplacement, took holdfast.Millis) {
		to.Now.Replica.Rotation, to.OldEpoch = took, oldEpoch
		if old := one.Replica(to.Now.Replica.Old); old != nil {
			old.State = holdfast.ReplicaLeaving
		}
	})
}

// drainOld waits for the end of the old replica's connections.
func (k *keeper) drainOld(ctx context.Context, r *holdfast.GroupReplacement) error {
	o, err := k.deps.Store.Get(ctx, r.Now.Replica.Old)
	switch {
	case err == nil && o.Epoch == r.OldEpoch:
		k.drain(ctx, o, r.Since)
	case err != nil && !errors.Is(err, holdfast.ErrNotFound):
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return k.ended(ctx, r, holdfast.ReplaceStopping, func(_ *holdfast.Group, to *holdfast.GroupReplacement, took holdfast.Millis) {
		to.Now.Replica.Drained = took
	})
}

// stopOld ends the old replica, which completes the row.
func (k *keeper) stopOld(ctx context.Context, r *holdfast.GroupReplacement) error {
	notice, err := k.stop(ctx, r.Now.Replica.Old, r.OldEpoch)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && passes(err):
		return err
	case err != nil:
		return k.failed(ctx, r, fmt.Errorf("the old replica %s is out of the rotation, and did not end: %w", r.Now.Replica.Old, err))
	}
	row := r.Now
	phases := *row.Replica
	row.Replica = &phases
	phases.Stopped, row.Total = sinceWall(r.Since), sinceWall(row.Started)
	return k.row(ctx, r, row, notice, func(one *holdfast.Group) { one.Replicas = without(one.Replicas, phases.Old) })
}

func sinceWall(t time.Time) holdfast.Millis { return holdfast.Millis(max(0, time.Since(t))) }

// failed ends the replacement with an error. A new replica that does not serve yet, or does
// not any more, is removed; a replica that has left the rotation stays out of it.
func (k *keeper) failed(ctx context.Context, r *holdfast.GroupReplacement, err error) error {
	row := r.Now
	row.Error, row.Total = strings.ToValidUTF8(err.Error()[:min(len(err.Error()), maxError)], ""), sinceWall(row.Started)
	k.deps.Log.Warn("a replica was not replaced", "group", k.spec.Name, "old", row.Replica.Old, "new", row.Key, "phase", r.Phase, "err", err)
	return k.row(ctx, r, row, "", func(one *holdfast.Group) {
		if r.Phase == holdfast.ReplaceStopping {
			return
		}
		if made := one.Replica(row.Key); made != nil {
			made.State = holdfast.ReplicaLeaving
		}
	})
}

// row ends the turn of a replica. A row may be twice in the history if this agent dies
// between the two writes.
func (k *keeper) row(ctx context.Context, was *holdfast.GroupReplacement, row holdfast.Replacement, notice string, f func(*holdfast.Group)) error {
	if err := k.deps.History.Append(row); err != nil {
		notice = "the history of replacements has gaps: " + err.Error()
	}
	return k.ended(ctx, was, "", func(one *holdfast.Group, r *holdfast.GroupReplacement, _ holdfast.Millis) {
		r.Report.Rows, r.Now = append(r.Report.Rows, row), holdfast.Replacement{}
		if notice != "" {
			r.Report.Notice = notice[:min(len(notice), maxError)]
		}
		f(one)
	})
}
