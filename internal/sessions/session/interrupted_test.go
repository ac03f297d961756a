package session

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// interrupter is an engine that once interrupts a boot.
type interrupter struct {
	engine.Engine
	start   atomic.Bool // the start fails
	away    atomic.Bool // the container ends, and the engine is away
	starts  atomic.Bool // the container ends, and the engine accepts connections, and does not answer yet
	signals atomic.Bool // the engine ends the container, and still answers
	ends    atomic.Bool // the container ends, and the engine answers once that it runs, and then no more
	stale   atomic.Pointer[engine.Container]
	takes   atomic.Bool // the engine takes the container's network away, and then ends the container
	until   atomic.Int64
	done    atomic.Int32 // interruptions
}

func (i *interrupter) Start(ctx context.Context, id string) error {
	if i.start.CompareAndSwap(true, false) {
		i.done.Add(1)
		return fmt.Errorf("start: %w", engine.ErrInterrupted)
	}
	return i.Engine.Start(ctx, id)
}

func (i *interrupter) Inspect(ctx context.Context, id string) (engine.Container, error) {
	if away := time.Until(time.Unix(0, i.until.Load())); away > 0 {
		if !i.starts.Load() && !i.ends.Load() {
			return engine.Container{}, fmt.Errorf("inspect: %w", holdfast.ErrEngine)
		}
		if c := i.stale.Swap(nil); c != nil {
			return *c, nil
		}
		if tasks.Sleep(ctx, away) != nil {
			return engine.Container{}, ctx.Err()
		}
	}
	c, err := i.Engine.Inspect(ctx, id)
	switch {
	case !c.Running():
	case i.signals.CompareAndSwap(true, false):
		i.done.Add(1)
		err = i.Engine.Kill(ctx, id)
	case i.takes.CompareAndSwap(true, false):
		i.done.Add(1)
		c.Addresses = nil
		time.AfterFunc(exitTimeout/10, func() { _ = i.Engine.Kill(context.WithoutCancel(ctx), id) })
	case i.away.CompareAndSwap(true, false), (i.starts.Load() || i.ends.Load()) && i.until.Load() == 0:
		i.done.Add(1)
		if i.ends.Load() {
			i.stale.Store(&c)
		}
		i.until.Store(time.Now().Add(exitTimeout + time.Second).UnixNano())
		err = i.Engine.Kill(ctx, id)
	}
	return c, err
}

// A request waits for another boot if the engine ends within its boot.
func TestEngineInterruptsABoot(t *testing.T) {
	e := &interrupter{Engine: openEngine(t)}
	n := newNode(t, setup{engine: e})
	for key, how := range map[holdfast.SessionKey]*atomic.Bool{"start": &e.start, "away": &e.away, "starts": &e.starts, "signals": &e.signals, "ends": &e.ends, "takes": &e.takes} {
		e.until.Store(0)
		how.Store(true)
		if err := answers(n.serve(t, key)); err != nil || e.done.Swap(0) != 1 {
			t.Errorf("%s: %v", key, err)
		}
		how.Store(false)
	}
	if got := n.containers(t); len(got) != 6 {
		t.Errorf("%d containers", len(got))
	}
}
