package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/engine"
	"holdfast/internal/kill"
)

// Mover carries what containers have in memory from one life of their session to
// the next. Its methods may be called from any goroutine.
type Mover interface {
	// Save saves the container and takes the image to whoever is to have the
	// session next. Without an error the container ends by itself.
	Save(ctx context.Context, o holdfast.Owner, t *kill.Target) error
	// Stage has the start of the created container of a claim be a restore,
	// and reports whether it will be: where there is an image of the life
	// right before that claim.
	Stage(ctx context.Context, o holdfast.Owner, container string) bool
	// Started is called once after a container that was staged was started,
	// well or not.
	Started(container string)
}

// savesAtOnce bounds how many containers are saved side by side.
const savesAtOnce = 4

// Save saves the containers of the batch whose templates ask for it. It returns
// how many, and why the others' memory is lost. It comes after Condemn and before
// the targets are killed, all of them: what was saved is seen dead like the rest.
func (b *Batch) Save(ctx context.Context) (saved int, lost []string) {
	if b.m.deps.Mover == nil {
		return 0, nil
	}
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(savesAtOnce)
	for _, e := range b.entries {
		if !e.template.SaveMemory {
			continue
		}
		b.m.mu.Lock()
		o, t := e.owner, e.target
		b.m.mu.Unlock()
		g.Go(func() error {
			begun := time.Now()
			err := b.m.deps.Mover.Save(ctx, o, t)
			b.m.deps.Metrics.saves.WithLabelValues(outcomeOf(err)).Observe(time.Since(begun).Seconds())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				lost = append(lost, fmt.Sprintf("the memory of session %s is lost: %v", o.Key, err))
				b.m.log.Warn("a session's memory is lost: its container was not saved", "session", o.Key, "epoch", o.Epoch, "err", err)
				return nil
			}
			saved++
			b.m.log.Info("session saved", "session", o.Key, "epoch", o.Epoch, "took", time.Since(begun).Round(time.Millisecond))
			return nil
		})
	}
	_ = g.Wait() // nobody fails
	return saved, lost
}

// startOrRestore starts the container, from an image where there is one. One that
// does not go on from its image is made anew, without.
func (b *attempt) startOrRestore(ctx context.Context, spec engine.Spec) error {
	start := func() error { return b.phase("start", func() error { return b.start(ctx) }) }
	mover := b.m.deps.Mover
	if mover == nil || !b.e.template.SaveMemory || !mover.Stage(ctx, b.owner, b.container) {
		return start()
	}
	err := start()
	mover.Started(b.container)
	b.m.deps.Metrics.restores.WithLabelValues(outcomeOf(err)).Inc()
	if err == nil {
		b.m.log.Info("session goes on from its memory", "session", b.e.key, "epoch", b.owner.Epoch)
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	b.m.log.Warn("a session's memory is lost: its container did not go on from its image", "session", b.e.key, "epoch", b.owner.Epoch, "err", err)
	if err := b.phase("create", func() error { return b.m.deps.Engine.Remove(ctx, b.container) }); err != nil {
		return err
	}
	if err := b.create(ctx, spec); err != nil {
		return err
	}
	return start()
}
