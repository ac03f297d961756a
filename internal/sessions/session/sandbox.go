package session

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// useSandbox restores the session's memory in a sandbox that waits for one. done is false if
// there is no sandbox or no memory, or if the sandbox could not be used. In the last case it is
// dead, and the image goes to a container that the session boots in.
func (b *attempt) useSandbox(ctx context.Context) (done bool, err error) {
	mover, t := b.m.deps.Mover, b.e.template
	if mover == nil || b.m.deps.Warm == nil || !t.SaveMemory || b.suspended == nil && !mover.Received(b.e.key) {
		return false, nil
	}
	w, ok := b.takeWarm()
	if !ok {
		return false, nil
	}
	staged := false
	err = b.identifySandbox(w.Dir())
	if err == nil {
		var lost error
		if staged, lost = b.stage(ctx); lost != nil {
			return true, lost
		}
	}
	if staged {
		err = b.phase("start", func() error {
			ctx, cancel := context.WithTimeout(ctx, engineTimeout)
			defer cancel()
			return b.spinup.Time(spinup.Start, func() error { return mover.RestoreHeld(ctx, b.container, b.target.Pid()) })
		})
		b.noteRestore(err == nil)
		if err == nil {
			mover.Unstage(b.container, true)
			return true, b.recordReady(b.phase("ready", func() error { return b.readySandbox(ctx, w.Address()) }))
		}
		b.stagedAt = b.container
	} else {
		mover.Unstage(b.container, false)
	}
	if ctx.Err() != nil { // also without an error of its own, the boot has failed
		return true, cmp.Or(err, ctx.Err())
	}
	if err != nil {
		b.m.log.Warn("the memory of a session could not be restored in a sandbox that waited for it; another container is created", "session", b.e.key, "container", short(b.container), "err", err)
	}
	b.spinup = nil
	if gone := b.discardContainer(ctx); gone != nil {
		return true, &holdfast.BootError{Key: b.e.key, Phase: "start", Err: fmt.Errorf("a sandbox that could not be used: %w", gone)}
	}
	return false, nil
}

// identifySandbox writes the identity of a sandbox. Its directory moves to the place of the
// session's epoch.
func (b *attempt) identifySandbox(from string) error {
	dir := b.m.identityDir(b.owner)
	if err := os.MkdirAll(b.m.cfg.IdentityRoot, 0o700); err != nil {
		return err
	}
	if err := os.Rename(from, dir); err != nil {
		return err
	}
	return b.writeIdentity(dir)
}

// readySandbox waits until the server of a restored sandbox answers at addr.
func (b *attempt) readySandbox(ctx context.Context, addr string) error {
	started := time.Now()
	if err := b.renewChild(ctx); err != nil {
		return err
	}
	return b.serve(ctx, b.container, addr, started)
}

// unstage removes the image of a sandbox that has ended, if no other container got it.
func (b *attempt) unstage() {
	if b.stagedAt != "" {
		b.m.deps.Mover.Unstage(b.stagedAt, false)
	}
}
