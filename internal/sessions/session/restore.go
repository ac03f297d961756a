package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/move"
)

// Mover saves the memory of containers for the next epoch of their session, and
// restores it. *move.Mover implements it. Its methods may be called from any
// goroutine.
type Mover interface {
	// Plan selects the sessions that can be saved until the deadline, in the order
	// in which to save them, and states why the others cannot be. It does not block.
	Plan(until time.Time, all []move.Departing) move.Plan
	// Save saves the container, sends the image to the session's successor, and
	// returns the size of the image in bytes. Without an error the container exits
	// by itself.
	Save(ctx context.Context, d move.Departing) (bytes int64, err error)
	// Reserve reserves space for the session's image until release is called, once.
	// An error says why the image cannot be kept on this node. It does not block.
	Reserve(d move.Departing) (_ move.Departing, release func(), err error)
	// Saved returns the note of a session whose agent ended while it saved the memory, if
	// this node has the complete image. It stores the image if that agent has not.
	Saved(ctx context.Context, o holdfast.Owner) (holdfast.Suspended, bool)
	// Suspend saves a container that Reserve has returned, and keeps the image for
	// the session's next epoch. Without an error the container exits by itself.
	Suspend(ctx context.Context, d move.Departing) (holdfast.Suspended, error)
	// Keep takes the image of a suspended session of another node, for the claim o, and stores
	// it on this node. It returns the note for its next claim. taken is whether the other node
	// may have given the image away.
	Keep(ctx context.Context, o holdfast.Owner, left holdfast.Suspended) (_ holdfast.Suspended, taken bool, err error)
	// Copy saves a container that Reserve has returned and that goes on, as the snapshot of the
	// name. If s.Until is zero, the copy is only for sessions that start before DropCopy.
	Copy(ctx context.Context, d move.Departing, s holdfast.MemorySnapshot) (holdfast.MemorySnapshot, error)
	// DropCopy removes such a copy.
	DropCopy(name holdfast.SessionKey)
	// Stage prepares the created container of a claim to be restored when it is
	// started. It reports false if there is no image of the epoch right before the
	// claim. left is the record of a suspended session, or nil. For a session that was moved
	// Stage sets o.WakeAt. An error states why an image cannot be used.
	Stage(ctx context.Context, o *holdfast.Owner, left *holdfast.Suspended, container string) (staged bool, err error)
	// Received reports whether Stage would find an image that another node has sent.
	Received(key holdfast.SessionKey) bool
	// RestoreHeld restores the staged container, which is one of Deps.Warm: its sandbox waits.
	// init is its process. After an error, Restage can give the image to another container,
	// when this one is dead.
	RestoreHeld(ctx context.Context, container string, init int) error
	// Used reports whether a start of the staged container has used the image.
	Used(container string) bool
	// Restage moves the image of a staged container that is dead to another created
	// container.
	Restage(from, to string) error
	// Unstage removes the image, and is called once for what was staged. restored is
	// whether the container was restored.
	Unstage(container string, restored bool)
}

// maxRestores is how often a restore is tried, if the engine fails while it restores.
const maxRestores = 2

// errInterrupted means that the engine failed during a restore, and the container does
// not run.
var errInterrupted = errors.New("the engine failed during the restore")

// startOrRestore starts the container, from an image if there is one. If the restore
// fails, it creates a new container and starts that without the image.
func (b *attempt) startOrRestore(ctx context.Context, spec engine.Spec) error {
	start := func() error { return b.phase("start", func() error { return b.start(ctx) }) }
	mover := b.m.deps.Mover
	if mover == nil || !b.e.template.SaveMemory {
		if b.suspended != nil {
			if err := b.lostMemory(holdfast.ErrNoMemory); err != nil {
				return err
			}
			b.suspended = nil // the session goes on without it
			b.m.dropNote(b.owner)
		}
		return start()
	}
	staged, err := b.stage(ctx)
	if err != nil {
		return err
	}
	if !staged {
		return start()
	}
	restored, err := b.restore(ctx, spec)
	b.noteRestore(restored)
	switch {
	case restored:
		return nil
	case err == nil:
		return b.lostMemory(errors.New("the engine has started its container without its image"))
	case ctx.Err() != nil:
		return err
	}
	if err := b.lostMemory(fmt.Errorf("its container could not be restored from its image: %w", err)); err != nil {
		return err
	}
	if err := b.replaceContainer(ctx, spec); err != nil {
		return err
	}
	return start()
}

// stage prepares the container to be restored, if there is an image. An error ends the boot.
func (b *attempt) stage(ctx context.Context) (staged bool, err error) {
	if b.followsErr != nil {
		if err := <-b.followsErr; err != nil {
			_ = b.lostMemory(err) // nil: it is no child
			b.suspended = nil
		}
		b.followsErr = nil
	}
	switch {
	case b.stagedAt != "":
		if err := b.m.deps.Mover.Restage(b.stagedAt, b.container); err != nil {
			return false, b.lostMemory(err)
		}
		b.stagedAt = ""
		return true, nil
	case b.staged:
		return false, nil
	}
	b.staged = true // an image is used at most once
	staged, err = b.m.deps.Mover.Stage(ctx, &b.owner, b.suspended, b.container)
	b.m.dropNote(b.owner) // before anything runs in the new epoch
	if err != nil {
		return false, b.lostMemory(err)
	}
	return staged, nil
}

// noteRestore records whether a container was restored.
func (b *attempt) noteRestore(restored bool) {
	if !restored {
		b.m.deps.Metrics.restores.WithLabelValues("failed").Inc()
		return
	}
	b.m.deps.Metrics.restores.WithLabelValues("ok").Inc()
	b.owner.Memory = holdfast.Restored
	if s := b.from(); s != nil {
		b.owner.Parent, b.owner.Snapshot = s.Key, s.Name
	}
	b.m.log.Info("session is restored from its memory", "session", b.e.key, "epoch", b.owner.Epoch)
}

// restore starts the staged container. If the engine fails meanwhile, it repeats the
// restore with another container: a start without the image would lose the memory. The
// image exists until the container was restored, or will not be. Without an error the
// container runs; restored is whether it has its memory.
func (b *attempt) restore(ctx context.Context, spec engine.Spec) (restored bool, err error) {
	mover, at := b.m.deps.Mover, b.container
	defer func() { mover.Unstage(at, restored) }()
	for n := 1; ; n++ {
		err = b.phase("start", func() error { return b.startStaged(ctx) })
		if err == nil {
			return mover.Used(at), nil
		}
		if !errors.Is(err, errInterrupted) || n == maxRestores {
			return false, err
		}
		b.m.log.Warn("the engine failed while it restored a session; the restore is repeated", "session", b.e.key, "epoch", b.owner.Epoch)
		if err := b.replaceContainer(ctx, spec); err != nil {
			return false, err
		}
		if err := mover.Restage(at, b.container); err != nil {
			return false, err
		}
		at = b.container
	}
}

// startStaged starts the staged container. It does not repeat a start that has used the
// image: if the container does not run after such a start, it returns errInterrupted.
func (b *attempt) startStaged(ctx context.Context) error {
	return b.startWith(ctx, func(ctx context.Context) error {
		if !b.m.deps.Mover.Used(b.container) {
			return b.m.deps.Engine.Start(ctx, b.container)
		}
		c, err := b.m.deps.Engine.Inspect(ctx, b.container)
		if err == nil && !c.Running() {
			err = errInterrupted
		}
		return err
	})
}

// replaceContainer removes the container, if there is one, sees it dead and creates another
// one. That one gets another network: gVisor takes the address from the network that it
// joins.
func (b *attempt) replaceContainer(ctx context.Context, spec engine.Spec) error {
	err := b.phase("create", func() error {
		ctx, cancel := context.WithTimeout(ctx, engineTimeout)
		defer cancel()
		return retry(ctx, holdfast.ErrEngine, func() error { return b.removeContainer(ctx) })
	})
	if err != nil {
		return err
	}
	b.m.dropNetwork(b.e)
	if b.container != "" {
		b.m.deps.Deadman.Forget(b.container)
	}
	b.container = ""
	return b.create(ctx, spec)
}

// maxReason bounds the reason of a lost memory in the session's record, in bytes.
const maxReason = 512

// lostMemory records why the session boots fresh although there was an image. A child of
// another session does not boot fresh: lostMemory returns the error of its boot.
func (b *attempt) lostMemory(err error) error {
	if s := b.from(); s != nil {
		return &holdfast.BootError{Key: b.e.key, Phase: "start", Err: fmt.Errorf("it cannot start from the memory of session %s: %w", s.Key, err)}
	}
	text := strings.ToValidUTF8(err.Error(), "")
	b.owner.Memory = "lost: " + text[:min(len(text), maxReason)]
	b.m.log.Warn("a session's memory is lost, and it boots fresh", "session", b.e.key, "epoch", b.owner.Epoch, "err", err)
	return nil
}

// from returns the snapshot that the session starts from, nil if it is no child.
func (b *attempt) from() *holdfast.MemorySnapshot {
	if b.suspended == nil {
		return nil
	}
	return b.suspended.From
}

// resume reads the note of the suspended previous epoch. The session keeps the
// template of that epoch, unless the request named another one. done ends the check
// that resume started. A child of another session has no previous epoch.
func (b *attempt) resume(ctx context.Context) (done func(), err error) {
	done = func() {}
	if b.owner.SuspendNote == "" {
		return done, nil
	}
	left, err := b.readSuspendNote()
	later := errors.Is(err, errRuntimeFails)
	if err == nil || later || left.From != nil {
		b.suspended = &left
		b.keepNote()
	}
	switch {
	case later && left.From == nil: // a start of the template is refused as well
		return done, &holdfast.BootError{Key: b.e.key, Phase: "claim", Err: err}
	case left.From != nil && time.Now().After(left.Until): // the request for it ended long ago
		b.suspended = nil
		return done, nil
	case err != nil:
		return done, b.lostMemory(err)
	case left.From != nil:
		return done, nil
	}
	if !b.e.keeps {
		b.resumed(left)
	}
	return b.checkFollows(ctx, left.Last(), b.owner.Epoch), nil
}

// errRuntimeFails means that the runtime of the suspended session's template does not work at
// the moment. The image is kept until it works.
var errRuntimeFails = errors.New("the runtime of its template does not work")

// readSuspendNote returns the note of the suspended previous epoch, if its template is
// the one that the session has now.
func (b *attempt) readSuspendNote() (left holdfast.Suspended, err error) {
	if err := json.Unmarshal([]byte(b.owner.SuspendNote), &left); err != nil || left.Key != b.e.key || left.Last() >= b.owner.Epoch {
		return left, errors.New("its suspend note cannot be read")
	}
	// A request for one template of an experiment is a request for any of them.
	other := b.e.templateNamed && b.m.deps.Assign(b.e.key, left.Template) != b.e.template.Name
	if left.Template != b.e.template.Name && !other {
		t, err := b.m.template(left.Template)
		if err != nil {
			return left, err
		}
		if err := b.m.deps.Runtime(t.Runtime); err != nil {
			return left, fmt.Errorf("%w: %w", errRuntimeFails, err)
		}
		b.m.mu.Lock()
		b.e.template = t
		b.m.mu.Unlock()
		b.owner.Template = t.Name // written with the next state
	}
	if left.Template != b.e.template.Name {
		return left, fmt.Errorf("the image was of template %s", left.Template)
	}
	if left.Lost != "" {
		return left, errors.New(left.Lost)
	}
	return left, nil
}

// checkFollows starts to check that no node has owned the session since it was
// suspended, until done is called. It runs in parallel, because a store may need a
// tenth of a second, which is less than the creation of the container takes.
// b.followsErr receives the result.
func (b *attempt) checkFollows(ctx context.Context, before, next holdfast.Epoch) (done func()) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	b.followsErr = make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.followsErr <- retry(ctx, holdfast.ErrStore, func() error { return b.m.follows(ctx, b.e.key, before, next) })
	}()
	return func() { cancel(); <-ended }
}

// follows returns an error if a node has owned the session between two epochs: a claim
// by an agent of a version without suspended sessions does not delete the suspend
// note. If the store has compacted that time, the image is used: the node that keeps
// the image has watched the session meanwhile (docs/moving.md).
func (m *Manager) follows(ctx context.Context, key holdfast.SessionKey, before, next holdfast.Epoch) error {
	ok, err := m.deps.Store.Follows(ctx, key, before, next)
	switch {
	case errors.Is(err, store.ErrForgotten):
		return nil
	case err == nil && !ok:
		return fmt.Errorf("it was running after it was suspended at epoch %d", before)
	}
	return err
}
