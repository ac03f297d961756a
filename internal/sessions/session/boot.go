package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
)

// Timeouts and bounds of a boot's parts.
const (
	claimTimeout   = 30 * time.Second // the store may be unavailable for a moment
	pullTimeout    = 10 * time.Minute // of an image; a slower registry fails the boot
	engineTimeout  = 60 * time.Second // the engine may be unavailable, too, and a start can queue behind others
	exitTimeout    = 2 * time.Second  // until the engine notices a death
	cleanupTimeout = 30 * time.Second // one attempt to remove the container of a failed boot
	logLines       = 20               // log lines of a failed container in its error; its ending has more
	logBytes       = 4 << 10
)

// boot claims the session, starts its container and then settles the entry. It removes
// what a failed boot left before it releases the ownership. ctx may end the boot. life
// is the Manager's context.
func (m *Manager) boot(ctx, life context.Context, e *entry) {
	started := time.Now()
	b := &attempt{m: m, e: e, timings: map[string]time.Duration{}}
	err := b.run(ctx)
	switch cause := context.Cause(ctx); {
	case err != nil && cause != nil:
		err = fmt.Errorf("session %s: %w", e.key, cause)
	case err != nil && e.holderLost():
		err = fmt.Errorf("%w: the holder of its network was lost: %w", engine.ErrInterrupted, err)
	}
	if !e.keeps {
		m.deps.Metrics.booted(b.timings, time.Since(started), err)
		if b.from() != nil {
			m.deps.Metrics.children.WithLabelValues(outcomeOf(err)).Inc()
		}
		b.endSpinup(ctx, err)
	}
	if err == nil {
		return
	}
	if elsewhere(err) {
		m.yield(e, err)
		return
	}
	if !e.keeps {
		m.log.Warn("session did not boot", "session", e.key, "err", err)
		m.reportBoot(b, err, context.Cause(ctx))
	}
	m.mu.Lock()
	e.err = err
	e.phase = leaving
	close(e.settled)
	close(e.left)
	m.mu.Unlock()

	if errors.Is(context.Cause(ctx), errStopped) {
		b.suspended = nil // the memory is not wanted any more
		b.m.dropNote(b.owner)
	}
	b.rollBack(life)
	m.mu.Lock()
	defer m.mu.Unlock()
	// A boot that was cancelled, or that is repeated, is not a failure to remember.
	if context.Cause(ctx) != nil || e.keeps || errors.Is(err, engine.ErrInterrupted) {
		m.dropLocked(e)
		return
	}
	e.phase = failed
	e.failedAt = time.Now()
	m.forgetLaterLocked(e)
}

// elsewhere reports whether a boot ended because another node owns the session.
func elsewhere(err error) bool {
	_, ok := errors.AsType[*holdfast.ElsewhereError](err)
	return ok
}

// yield ends an entry whose claim another node has won. The entry is removed without
// an error to remember, so that the next request looks for the owner again.
func (m *Manager) yield(e *entry, err error) {
	m.log.Debug("session is elsewhere", "session", e.key, "err", err)
	m.dropNetwork(e)
	m.mu.Lock()
	defer m.mu.Unlock()
	e.err, e.phase = err, leaving
	e.markDeadLocked()
	close(e.settled)
	close(e.left)
	m.dropLocked(e)
}

// forgetLaterLocked drops a failed entry after failureMemory.
func (m *Manager) forgetLaterLocked(e *entry) {
	m.tasks.Go(func(ctx context.Context) {
		_ = tasks.Sleep(ctx, failureMemory)
		m.mu.Lock()
		m.dropLocked(e)
		m.mu.Unlock()
	})
}

// attempt is one boot.
type attempt struct {
	m          *Manager
	e          *entry
	owner      holdfast.Owner      // as in the store; zero before the claim
	unsure     bool                // a claim was sent and not answered
	slotted    bool                // the attempt holds a slot of Manager.boots
	suspended  *holdfast.Suspended // note of the suspended previous epoch; nil: none
	staged     bool                // the image was taken, or that was tried
	stagedAt   string              // the sandbox that has the image, and has ended; "" for none
	followsErr chan error          // nil if no other node can have owned the session since the suspension; receives nil or an error
	// The present container of the boot: an init step's or the session's own. Earlier
	// ones were seen dead.
	spec       engine.Spec // without a name before the first container
	container  string
	target     *kill.Target
	spinup     *spinup.Timer            // of the present container; nil when it is recorded
	timings    map[string]time.Duration // by phase
	answered   time.Duration            // part of the phase ready: until the server answered
	exited     *engine.Container        // the container, if it ended within the boot
	output     string                   // its last lines, as many as an Ending keeps
	generation string                   // content of its GenerationFile
}

// phase runs f and adds its duration to the named phase. An error of f becomes a
// BootError of that phase, unless it reports that another node owns the session.
func (b *attempt) phase(name string, f func() error) error {
	start := time.Now()
	err := f()
	b.timings[name] += time.Since(start)
	if err == nil || elsewhere(err) {
		return err
	}
	return &holdfast.BootError{Key: b.e.key, Phase: name, Err: err}
}

// took returns the durations of the boot until the server answered.
func (b *attempt) took() holdfast.Phases {
	of := func(name string) holdfast.Millis { return holdfast.Millis(b.timings[name]) }
	return holdfast.Phases{
		Queue: of("queue"), Claim: of("claim"), Pull: of("pull"), Disk: of("disk"), Init: of("init"),
		Create: of("create"), Start: of("start"), Ready: holdfast.Millis(b.answered),
	}
}

func (b *attempt) run(ctx context.Context) error {
	// A boot in a warm container needs no slot. A restore does.
	warm := !b.e.keeps && !b.e.template.SaveMemory && b.m.deps.Warm != nil && b.m.deps.Warm.Ready(b.e.template.Name)
	if !warm {
		if err := b.slot(ctx); err != nil {
			return err
		}
	}
	defer b.leaveSlot()
	endPrewarm := b.m.prewarmCgroupAttach(warm)
	defer endPrewarm()
	if err := b.phase("claim", func() error { return b.claim(ctx) }); err != nil {
		return err
	}
	defer b.m.deps.Spinups.Begin(spinup.ForSession, string(b.e.key))()
	done, err := b.resume(ctx)
	defer done()
	if err != nil {
		return b.ended(ctx, err)
	}
	if b.e.keeps {
		return b.keep(ctx)
	}
	if warm {
		if done, err := b.useWarm(ctx); done {
			return b.ended(ctx, err)
		}
		if err := b.slot(ctx); err != nil {
			return err
		}
	}
	defer b.unstage()
	if done, err := b.useSandbox(ctx); done {
		return b.ended(ctx, err)
	}
	// The write of the state "starting" and the engine's create run in parallel.
	specs := b.e.template.specs(b.owner)
	if err := b.mountIdentity(&specs[len(specs)-1]); err != nil {
		return &holdfast.BootError{Key: b.e.key, Phase: "create", Err: err}
	}
	advanced := make(chan error, 1)
	go func() { advanced <- b.advance(ctx, holdfast.Starting) }()
	err = b.create(ctx, specs[0])
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
		err = b.startOrRestore(ctx, specs[len(specs)-1])
	}
	endPrewarm()
	if err == nil {
		err = b.recordReady(b.phase("ready", func() error { return b.ready(ctx) }))
	}
	return b.ended(ctx, err)
}

// recordReady records the result of the phase ready.
func (b *attempt) recordReady(err error) error {
	b.spinup.Took(spinup.Ready, cmp.Or(b.answered, b.timings["ready"]), err)
	return err
}

// ended kills the container of a failed boot.
func (b *attempt) ended(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	b.kill(ctx)
	return b.withLog(ctx, err)
}

// kill kills the container of a failed boot, if it has a target, without waiting for
// the engine: a node that has lost its store has little time. The removal that follows
// ensures the container's end in every case.
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
		b.e.markDeadLocked()
		b.m.mu.Unlock()
	}
}

// slot waits for one of the slots for boots.
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

// leaveSlot releases the slot, if the attempt holds one.
func (b *attempt) leaveSlot() {
	if b.slotted {
		b.slotted = false
		<-b.m.boots
	}
}

// ready waits until the session's server answers and publishes its address.
func (b *attempt) ready(ctx context.Context) error {
	started := time.Now()
	c, err := b.open(ctx)
	if errors.Is(err, errDied) {
		return b.exit(ctx)
	}
	if err != nil {
		return err
	}
	if err := b.joined(); err != nil {
		if errors.Is(err, errDied) || b.target.Init().Exited() {
			return b.exit(ctx)
		}
		return err
	}
	addr, err := address(c, b.e.template)
	if err != nil {
		return b.unreachable(ctx, err)
	}
	if err := b.renewChild(ctx); err != nil {
		return err
	}
	return b.serve(ctx, c.ID, addr, started)
}

// serve waits until the server at addr answers and publishes it.
func (b *attempt) serve(ctx context.Context, id, addr string, started time.Time) error {
	if err := awaitReady(ctx, addr, b.e.template.Ready, b.target.Alive); err != nil {
		if errors.Is(err, errDied) {
			return b.exit(ctx)
		}
		return err
	}
	b.answered = time.Since(started)
	b.owner.ContainerID, b.owner.Address, b.owner.ReadyAt, b.owner.Boot = id, addr, time.Now().UTC(), b.took()
	if err := b.advance(ctx, holdfast.Ready); err != nil {
		return err
	}
	return b.m.settle(ctx, b)
}

// settle makes the entry ready, unless the boot was cancelled meanwhile.
func (m *Manager) settle(ctx context.Context, b *attempt) error {
	first := firstSample(b.target.Memory())
	m.mu.Lock()
	if err := ctx.Err(); err != nil {
		m.mu.Unlock()
		return err
	}
	m.enterLocked(b.e, b.owner, b.target)
	b.e.end.memory = first
	m.watchLocked(b.e) // before another goroutine can end the entry and close its target
	close(b.e.settled)
	m.mu.Unlock()
	if b.owner.Memory == holdfast.Restored {
		m.emit(holdfast.EventResumed, b.owner, 0)
	}
	m.emit(holdfast.EventReady, b.owner, holdfast.Millis(b.owner.ReadyAt.Sub(b.owner.ClaimedAt)))
	m.log.Info("session ready", "session", b.owner.Key, "epoch", b.owner.Epoch, "container", short(b.owner.ContainerID), "address", b.owner.Address)
	return nil
}

func (m *Manager) enterLocked(e *entry, o holdfast.Owner, t *kill.Target) {
	e.owner, e.target, e.phase, e.idleSince, e.generation = o, t, ready, time.Now(), m.generation
	m.letSleepLocked(e)
	e.cron = e.template.nextWake(e.idleSince)
	e.route = holdfast.Route{Key: o.Key, Address: o.Address, Epoch: o.Epoch, ContainerID: o.ContainerID, Left: e.left, Keep: e.template.Keep, Upgrades: e.template.Upgrades, Ports: e.template.ports()}
}

// short returns the usual short form of a container id.
func short(id string) string { return id[:min(12, len(id))] }

// prewarmCgroupAttach keeps the kernel's cgroup migration path active while the
// session is claimed and its container is created. The first process that enters a
// cgroup after an idle period waits 4 to 15 ms in the kernel (cgroup.ReadyAttach); with
// the path active it does not. One boot at a time does this, on behalf of all concurrent boots.
// Calling stop ends it; stop is idempotent. A warm container needs no prewarming,
// because its process is already attached.
func (m *Manager) prewarmCgroupAttach(warm bool) (stop func()) {
	if warm || m.deps.PrewarmCgroupAttach == nil || !m.prewarming.CompareAndSwap(false, true) {
		return func() {}
	}
	done := make(chan struct{})
	begun := m.tasks.Go(func(context.Context) {
		defer m.prewarming.Store(false)
		m.deps.PrewarmCgroupAttach(done)
	})
	if !begun {
		m.prewarming.Store(false)
	}
	return sync.OnceFunc(func() { close(done) })
}
