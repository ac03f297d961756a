package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/engine"
	"holdfast/internal/kill"
	"holdfast/internal/store"
)

// Bounds of a boot's parts.
const (
	claimTimeout   = 30 * time.Second // the store may be away for a moment
	pullTimeout    = 10 * time.Minute // of an image; a registry that is slower than that fails the boot
	engineTimeout  = 60 * time.Second // so may the engine; a start can queue behind others
	exitTimeout    = 2 * time.Second  // for the engine to notice a death
	cleanupTimeout = 30 * time.Second // one try to remove what a failed boot left
	logLines       = 20               // of a container that failed, for its error
	logBytes       = 4 << 10
)

// boot claims the session and brings its container up, then settles the entry.
// What a failed boot left is removed before its ownership is given up. ctx may
// end the boot, life is the Manager's.
func (m *Manager) boot(ctx, life context.Context, e *entry) {
	started := time.Now()
	b := &attempt{m: m, e: e, timings: map[string]time.Duration{}}
	err := b.run(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("session %s: %w", e.key, cause)
	}
	m.deps.Metrics.booted(b.timings, time.Since(started), err)
	if err == nil {
		return
	}
	if elsewhere(err) {
		m.yield(e, err)
		return
	}
	m.log.Warn("session did not boot", "session", e.key, "err", err)
	m.mu.Lock()
	e.err = err
	e.phase = leaving
	close(e.settled)
	close(e.left)
	m.mu.Unlock()

	b.undo(life)
	m.mu.Lock()
	defer m.mu.Unlock()
	if context.Cause(ctx) != nil { // it was told to give up: that is no failure to remember
		m.dropLocked(e)
		return
	}
	e.phase = failed
	e.failedAt = time.Now()
	m.forgetLaterLocked(e)
}

// elsewhere reports whether a boot ended because another node has the session.
func elsewhere(err error) bool {
	var other *holdfast.ElsewhereError
	return errors.As(err, &other)
}

// yield ends an entry whose claim another node won. Nothing is left of it, and
// there is nothing to remember: the next to ask finds out where it is by then.
func (m *Manager) yield(e *entry, err error) {
	m.log.Debug("session is elsewhere", "session", e.key, "err", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	e.err, e.phase = err, leaving
	e.buryLocked()
	close(e.settled)
	close(e.left)
	m.dropLocked(e)
}

// forgetLaterLocked drops a failed entry once it has answered for
// failureMemory.
func (m *Manager) forgetLaterLocked(e *entry) {
	m.spawnLocked(func(ctx context.Context) {
		select {
		case <-time.After(failureMemory):
		case <-ctx.Done():
		}
		m.mu.Lock()
		m.dropLocked(e)
		m.mu.Unlock()
	})
}

// attempt is one boot on its way.
type attempt struct {
	m       *Manager
	e       *entry
	owner   holdfast.Owner // as the store has it; zero before the claim
	unsure  bool           // a claim was sent and never answered
	slotted bool           // one of Manager.boots is ours
	// The container that the boot is at: a step's or the session's own. Those
	// before it were seen dead.
	name      string // "" before the first
	container string
	target    *kill.Target
	timings   map[string]time.Duration // by phase
	answered  time.Duration            // of the phase ready: until the server answered
}

// phase times f under a name, adding to what the phase took before; its error is
// a BootError of that phase, unless it says that the session is elsewhere.
func (b *attempt) phase(name string, f func() error) error {
	start := time.Now()
	err := f()
	b.timings[name] += time.Since(start)
	if err == nil || elsewhere(err) {
		return err
	}
	return &holdfast.BootError{Key: b.e.key, Phase: name, Err: err}
}

// took is what the boot took until the server answered.
func (b *attempt) took() holdfast.Phases {
	of := func(name string) holdfast.Millis { return holdfast.Millis(b.timings[name]) }
	return holdfast.Phases{
		Queue: of("queue"), Claim: of("claim"), Pull: of("pull"), Init: of("init"),
		Create: of("create"), Start: of("start"), Ready: holdfast.Millis(b.answered),
	}
}

func (b *attempt) run(ctx context.Context) error {
	if err := b.slot(ctx); err != nil {
		return err
	}
	defer b.leaveSlot()
	if err := b.phase("claim", func() error { return b.claim(ctx) }); err != nil {
		return err
	}
	// The record says "starting" while the engine creates: neither waits
	// for the other.
	specs := b.e.template.specs(b.owner)
	advanced := make(chan error, 1)
	go func() { advanced <- b.advance(ctx, holdfast.Starting) }()
	err := b.create(ctx, specs[0])
	if advErr := <-advanced; err == nil && advErr != nil {
		err = &holdfast.BootError{Key: b.e.key, Phase: "claim", Err: advErr}
	}
	for i, step := range b.e.template.Steps {
		if err == nil {
			err = b.step(ctx, step)
		}
		if err == nil {
			err = b.create(ctx, specs[i+1])
		}
	}
	if err == nil {
		err = b.phase("start", func() error { return b.start(ctx) })
	}
	if err == nil {
		err = b.phase("ready", func() error { return b.ready(ctx) })
	}
	if err != nil {
		b.kill(ctx)
		return b.withLog(ctx, err)
	}
	return nil
}

// kill makes the container of a boot that failed dead, if it was got hold of,
// without waiting for the engine: a node that is cut off has little time.
// Removing it follows, and is what is relied on.
func (b *attempt) kill(ctx context.Context) {
	if b.target == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	report := b.m.deps.Killer.Kill(ctx, []*kill.Target{b.target})
	b.m.deps.Metrics.killed(report)
	if len(report.Dead) > 0 {
		b.m.mu.Lock()
		b.e.buryLocked()
		b.m.mu.Unlock()
	}
}

// slot waits for one of the boots that may run at once.
func (b *attempt) slot(ctx context.Context) error {
	return b.phase("queue", func() error {
		select {
		case b.m.boots <- struct{}{}:
			b.slotted = true
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// leaveSlot lets another boot go on. It may be called without a slot.
func (b *attempt) leaveSlot() {
	if b.slotted {
		b.slotted = false
		<-b.m.boots
	}
}

func (b *attempt) claim(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return retry(ctx, holdfast.ErrStore, func() error {
		lease := b.m.deps.Lease()
		if lease == 0 {
			return fmt.Errorf("this node cannot renew its lease: %w", holdfast.ErrStore)
		}
		o, err := b.m.deps.Store.Claim(ctx, holdfast.Owner{
			Key: b.e.key, Node: b.m.cfg.Node, State: holdfast.Claimed,
			Template: b.e.template.Name, ClaimedAt: time.Now().UTC(),
		}, lease)
		if errors.Is(err, store.ErrTaken) && b.lost(o) {
			err = nil
		}
		b.unsure = err != nil && !errors.Is(err, store.ErrTaken) && !errors.Is(err, store.ErrLeaseGone)
		if errors.Is(err, store.ErrTaken) && o.Node != b.m.cfg.Node {
			return &holdfast.ElsewhereError{Owner: o}
		}
		if errors.Is(err, store.ErrTaken) {
			// Ours, of an earlier time, and no session of this
			// Manager's: this entry is the key's only one.
			if err := b.m.clear(ctx, o); err != nil {
				return err
			}
			return fmt.Errorf("an old record of this node was in the way: %w", holdfast.ErrStore) // try again
		}
		if err != nil {
			return err
		}
		b.owner = o
		return nil
	})
}

// lost reports whether a record is our own and nobody here knows it: a claim
// that was written although its answer got lost. Nothing runs under it, because
// a container is created only with the epoch of an answered claim.
func (b *attempt) lost(o holdfast.Owner) bool {
	return o.Node == b.m.cfg.Node && o.State == holdfast.Claimed
}

// advance moves the record on; only boot and what follows it write it.
func (b *attempt) advance(ctx context.Context, s holdfast.State) error {
	next := b.owner
	next.State = s
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return retry(ctx, holdfast.ErrStore, func() error {
		got, err := b.m.deps.Store.Advance(ctx, next)
		if errors.Is(err, store.ErrStale) && sameWrite(got, next) {
			err = nil // an earlier try was written, its answer lost
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", s, err)
		}
		b.owner = got
		return nil
	})
}

// sameWrite reports whether the record is what we tried to write.
func sameWrite(got, want holdfast.Owner) bool {
	return got.Epoch == want.Epoch && got.Node == want.Node && got.State == want.State
}

// create makes the container, pulling its image where this host has none.
func (b *attempt) create(ctx context.Context, spec engine.Spec) error {
	phase := "create"
	if spec.Labels[LabelStep] != "" {
		phase = "init"
	}
	b.name = spec.Name
	try := func() error { return b.phase(phase, func() error { return b.createOnce(ctx, spec) }) }
	err := try()
	if !errors.Is(err, engine.ErrNoImage) {
		return err
	}
	// It may take minutes, in which others can start what is here.
	b.leaveSlot()
	if err := b.phase("pull", func() error { return b.m.pulls.fetch(ctx, spec.Image) }); err != nil {
		return err
	}
	if err := b.slot(ctx); err != nil {
		return err
	}
	return try()
}

func (b *attempt) createOnce(ctx context.Context, spec engine.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	return retry(ctx, holdfast.ErrEngine, func() error {
		id, err := b.m.deps.Engine.Create(ctx, spec)
		if errors.Is(err, engine.ErrConflict) {
			// The name holds the epoch, so it is ours: an earlier
			// try got through and its answer got lost.
			var c engine.Container
			if c, err = b.m.deps.Engine.Inspect(ctx, spec.Name); err == nil {
				id = c.ID
			}
		}
		if err != nil {
			return err
		}
		b.container = id
		return nil
	})
}

func (b *attempt) start(ctx context.Context) error {
	if err := b.m.expect(b.container); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	return retry(ctx, holdfast.ErrEngine, func() error { return b.m.deps.Engine.Start(ctx, b.container) })
}

func (b *attempt) inspect(ctx context.Context) (c engine.Container, err error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	err = retry(ctx, holdfast.ErrEngine, func() error {
		c, err = b.m.deps.Engine.Inspect(ctx, b.container)
		return err
	})
	return c, err
}

// ready waits until the session's server answers and publishes where.
func (b *attempt) ready(ctx context.Context) error {
	started := time.Now()
	c, err := b.grab(ctx)
	if errors.Is(err, errDied) {
		return b.exit(ctx)
	}
	if err != nil {
		return err
	}
	addr, err := address(c, b.e.template)
	if err != nil {
		return err
	}
	if err := awaitReady(ctx, addr, b.e.template.Ready, b.target.Alive); err != nil {
		if errors.Is(err, errDied) {
			return b.exit(ctx)
		}
		return err
	}
	b.answered = time.Since(started)
	b.owner.ContainerID, b.owner.Address, b.owner.ReadyAt, b.owner.Boot = c.ID, addr, time.Now().UTC(), b.took()
	if err := b.advance(ctx, holdfast.Ready); err != nil {
		return err
	}
	return b.m.settle(ctx, b)
}

// grab takes hold of the container's init. errDied where it is too late for that.
func (b *attempt) grab(ctx context.Context) (engine.Container, error) {
	c, err := b.inspect(ctx)
	if err != nil {
		return c, err
	}
	if !c.Running() {
		return c, errDied
	}
	b.target, err = b.m.deps.Opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		return c, errDied
	}
	if err != nil {
		return c, fmt.Errorf("opening the container's init: %w", err)
	}
	b.target.Key = b.e.key
	b.m.hold(b.target)
	return c, nil
}

// exit is why a container that is dead ended, once the engine has noticed.
func (b *attempt) exit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exitTimeout)
	defer cancel()
	for {
		c, err := b.m.deps.Engine.Inspect(ctx, b.container)
		if err == nil && !c.Running() {
			return exited(c, " before it was ready")
		}
		select {
		case <-time.After(firstPause):
		case <-ctx.Done():
			return errDied
		}
	}
}

// settle makes the entry ready, unless it was told to give up meanwhile.
func (m *Manager) settle(ctx context.Context, b *attempt) error {
	m.mu.Lock()
	if err := ctx.Err(); err != nil {
		m.mu.Unlock()
		return err
	}
	m.enterLocked(b.e, b.owner, b.target)
	m.watchLocked(b.e) // before anybody can end it, and so close what is watched
	close(b.e.settled)
	m.mu.Unlock()
	m.log.Info("session ready", "session", b.owner.Key, "epoch", b.owner.Epoch, "container", short(b.owner.ContainerID), "address", b.owner.Address)
	return nil
}

func (m *Manager) enterLocked(e *entry, o holdfast.Owner, t *kill.Target) {
	e.owner, e.target, e.phase, e.idleSince = o, t, ready, time.Now()
	e.route = holdfast.Route{Key: o.Key, Address: o.Address, Epoch: o.Epoch, ContainerID: o.ContainerID, Left: e.left}
}

// exited is the error of a container that ended, when is a clause.
func exited(c engine.Container, when string) error {
	switch {
	case c.OOMKilled:
		return holdfast.WithHint(errors.New("the container ran out of memory"), "raise the template's memory")
	case c.Error != "":
		return fmt.Errorf("the container ended with exit code %d: %s", c.ExitCode, c.Error)
	}
	return fmt.Errorf("the container ended with exit code %d%s", c.ExitCode, when)
}

// withLog adds the container's last lines to a boot's error.
func (b *attempt) withLog(ctx context.Context, err error) error {
	var boot *holdfast.BootError
	if b.container == "" || !errors.As(err, &boot) || ctx.Err() != nil { // one that was told to give up has nothing to explain
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	boot.Log = b.m.lastLines(ctx, b.container)
	return err
}

// lastLines is the end of a container's output, "" where it cannot be had.
func (m *Manager) lastLines(ctx context.Context, id string) string {
	var buf bytes.Buffer
	if err := m.deps.Engine.Logs(ctx, id, engine.LogOptions{Tail: logLines}, &buf); err != nil {
		return ""
	}
	text := buf.Bytes()
	if len(text) > logBytes {
		text = text[len(text)-logBytes:]
	}
	return strings.ToValidUTF8(string(text), "�")
}

// undo removes the container of a failed boot, sees to it that it is gone, and
// then gives the claim up. It tries until it has succeeded or the agent stops,
// in which case the next agent finds both by label and record.
func (b *attempt) undo(life context.Context) {
	if b.target != nil {
		defer b.target.Close()
	}
	if b.name != "" && !b.m.persist(life, "removing the container of a failed boot", b.e.key, b.removeContainer) {
		return // it may run: the record stays, for the next agent
	}
	b.m.mu.Lock()
	b.e.buryLocked()
	b.m.mu.Unlock()
	if b.container != "" {
		b.m.forget(b.container)
	}
	if b.owner.Epoch != 0 || b.unsure {
		b.m.persist(life, "releasing a failed boot", b.e.key, b.giveUp)
	}
}

// removeContainer removes the container by its name, because an engine may
// create or start one and still answer with an error. Remove kills what runs.
// One that is dead and cannot be removed for now does not keep its key.
func (b *attempt) removeContainer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	id := b.container
	if id == "" {
		id = b.name
	}
	err := b.m.deps.Engine.Remove(ctx, id)
	if err == nil {
		return nil
	}
	if c, look := b.m.deps.Engine.Inspect(ctx, id); look == nil && ended(c) {
		b.m.remove(c.ID)
		return nil
	}
	return err
}

// ended reports whether a container ran and never will again: a created one may
// be about to start.
func ended(c engine.Container) bool { return c.State == "exited" || c.State == "dead" }

// giveUp releases the claim, also one whose answer never came.
func (b *attempt) giveUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	if b.owner.Epoch == 0 {
		o, err := b.m.deps.Store.Get(ctx, b.e.key)
		if errors.Is(err, holdfast.ErrNotFound) || err == nil && !b.lost(o) {
			return nil
		}
		if err != nil {
			return err
		}
		b.owner = o
	}
	return b.m.giveUp(ctx, []holdfast.Owner{b.owner})
}

// short is the usual short form of a container id.
func short(id string) string { return id[:min(12, len(id))] }
