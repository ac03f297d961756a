package session

import (
	"context"
	"errors"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/store"
)

// rollBack removes the container of a failed boot and then releases the claim. It
// retries until it succeeds or the agent stops. In the second case the next agent
// finds both by label and record.
func (b *attempt) rollBack(life context.Context) {
	if b.target != nil {
		defer b.target.Close()
	}
	if b.spec.Name != "" && !b.m.persist(life, "removing the container of a failed boot", b.e.key, b.removeContainer) {
		return // the container may run: the record stays for the next agent
	}
	b.m.dropNetwork(b.e)
	b.m.removeIdentity(b.owner)
	b.m.mu.Lock()
	b.e.markDeadLocked()
	b.m.mu.Unlock()
	if b.container != "" {
		b.m.deps.Deadman.Forget(b.container)
	}
	if b.owner.Epoch != 0 || b.unsure {
		if b.m.persist(life, "releasing a failed boot", b.e.key, b.giveUp) {
			b.m.dropNote(b.owner)
		}
	}
}

// removeContainer removes the container. Engine.Remove kills it if it runs. If the
// container's id is unknown, it is found by its name, because an engine may create a
// container and return an error. A dead container that cannot be removed at the moment
// does not block its key.
func (b *attempt) removeContainer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	if b.container == "" {
		c, err := b.m.deps.Engine.Inspect(ctx, b.spec.Name)
		if errors.Is(err, holdfast.ErrNotFound) || err == nil && !matchesSpec(c, b.spec) {
			return nil
		}
		if err != nil {
			return err
		}
		b.container = c.ID
	}
	err := b.m.deps.Engine.Remove(ctx, b.container)
	if err == nil {
		return b.m.deps.Opener.SeeDead(ctx, []string{b.container})[b.container]
	}
	if c, look := b.m.deps.Engine.Inspect(ctx, b.container); look == nil && ended(c) && len(b.m.deps.Opener.SeeDead(ctx, []string{c.ID})) == 0 {
		b.m.remove(c.ID)
		return nil
	}
	return err
}

// ended reports whether a container has run and will not run again. A created one may
// be about to start.
func ended(c engine.Container) bool {
	return c.State == "exited" || c.State == "dead" || c.State == "removing"
}

// giveUp releases the claim, also one whose answer was never received.
func (b *attempt) giveUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	if b.owner.Epoch == 0 {
		o, err := b.m.deps.Store.Get(ctx, b.e.key)
		if errors.Is(err, holdfast.ErrNotFound) || err == nil && !b.isLostClaim(o) {
			return nil
		}
		if err != nil {
			return err
		}
		b.owner = o
	}
	if back, err := b.suspendAgain(ctx); back || err != nil {
		return err
	}
	return b.m.giveUp(ctx, []holdfast.Owner{b.owner})
}

// suspendAgain releases the claim of a boot that has not taken its image, and leaves the note
// to the next claim. It reports whether it did.
func (b *attempt) suspendAgain(ctx context.Context) (bool, error) {
	if b.suspended == nil || b.suspended.From != nil || b.staged || b.m.cloned() {
		return false, nil
	}
	err := b.m.leaveNote(ctx, b.owner, *b.suspended)
	if errors.Is(err, store.ErrStale) { // a write without an answer has changed the record, or it is gone
		now, look := b.m.deps.Store.Get(ctx, b.e.key)
		switch {
		case errors.Is(look, holdfast.ErrNotFound) || look == nil && (now.Epoch != b.owner.Epoch || now.Node != b.owner.Node):
			return false, nil
		case look != nil:
			return false, look
		}
		err = b.m.leaveNote(ctx, now, *b.suspended)
	}
	return err == nil, err
}
