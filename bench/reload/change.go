package reload

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"holdfast/internal/platform/tasks"
)

// Change is a kind of change to HAProxy.
type Change string

// The two changes, and the pause between the end of one and the next.
const (
	Reload  Change = "reload"  // the next one starts beside the old one (-sf)
	Restart Change = "restart" // kill -9, then the next one starts
)

func (c Change) pause() time.Duration {
	if c == Reload {
		return 100 * time.Millisecond
	}
	return 300 * time.Millisecond
}

// script is the file of the stack with the command.
func (c Change) script() string { return string(c) + ".sh" }

// changeLimit is the time limit of one change.
const changeLimit = time.Minute

// overdue bounds a load whose changes come too slowly, as a multiple of its
// requests.
const overdue = 10

// span is one change: its start after the load's start, and the duration of the command.
type span struct{ at, took time.Duration }

// measure runs the load while HAProxy is changed repeatedly.
func (x *experiment) measure(ctx context.Context, r *Run, w way) error {
	var changes atomic.Int64
	l := load{to: frontAddress, answer: pong, rate: x.o.Rate, conns: maxOpen, limit: clientLimit, more: func(begun int) bool {
		return begun < r.least || int(changes.Load()) < r.leastChanges && begun < overdue*r.least
	}}
	life, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		err := x.keepChanging(life, r, w, began, &changes)
		if err != nil {
			stop(err) // the load, too
		}
		ended <- err
	}()
	over := make(chan struct{})
	still, watched := watchStills(began, over)
	rec, err := l.run(life)
	close(over)
	watched.Wait()
	if life.Err() != nil && ctx.Err() == nil {
		err = context.Cause(life)
	}
	stop(nil)
	if e := <-ended; err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	r.stills = still.all()
	r.sum(rec)
	return nil
}

// keepChanging changes HAProxy until ctx is done; a change that has begun comes to
// its end.
func (x *experiment) keepChanging(ctx context.Context, r *Run, w way, began time.Time, changes *atomic.Int64) error {
	pause := r.Change.pause()
	if p, ok := w.(interface{ pause() time.Duration }); ok {
		pause = p.pause()
	}
	for {
		if tasks.Sleep(ctx, pause) != nil {
			return nil
		}
		at := time.Since(began)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeLimit)
		took, err := w.change(limited, r.Change)
		cancel()
		if err != nil {
			return fmt.Errorf("%s %d: %w", r.Change, changes.Load()+1, err)
		}
		r.changes = append(r.changes, span{at, took})
		changes.Add(1)
	}
}
