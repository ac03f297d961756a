package session

import (
	"context"
	"time"

	"holdfast"
	"holdfast/internal/engine"
)

// Mover carries what containers have in memory from one life of their session to
// the next. Its methods may be called from any goroutine.
type Mover interface {
	// Choose decides which of the sessions can be saved by a moment, in which
	// order, and says why the others cannot. It does not wait.
	Choose(until time.Time, all []Leaving) Choice
	// Save saves the container and takes the image to whoever is to have the
	// session next; it returns the image's bytes. Without an error the container
	// ends by itself.
	Save(ctx context.Context, l Leaving) (bytes int64, err error)
	// Stage has the start of the created container of a claim be a restore,
	// and reports whether it will be: where there is an image of the life
	// right before that claim.
	Stage(ctx context.Context, o holdfast.Owner, container string) bool
	// Started is called once after a container that was staged was started, with
	// the error of that.
	Started(container string, err error)
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
	mover.Started(b.container, err)
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
