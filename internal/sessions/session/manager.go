package session

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/hook"
	"holdfast/internal/sessions/kill"
)

// Config is what a Manager needs to know.
type Config struct {
	Node      holdfast.NodeID
	Templates []Template    // the first is the default; at least one
	IdleStop  time.Duration // stop a session after that long without a connection; 0 is never
	Boots     int           // containers being started at once, over 0
	Max       int           // sessions at once, 0 is no bound

	// Others says that other nodes can be asked for a session: one that the
	// lease does not allow to be claimed now fails at once with
	// holdfast.ErrStore, and does not wait for better times.
	Others    bool
	Snapshots int // snapshot commands at once; 0 is one for each CPU

	// IdentityRoot is a directory of this host, of its own, for what containers are told
	// whose memory can be saved (ToldDir); "": nothing.
	IdentityRoot string
}

// Deps is what a Manager works with.
type Deps struct {
	Store   store.Store
	Engine  engine.Engine
	Opener  *kill.Opener
	Killer  *kill.Killer
	Watcher Watcher
	Lease   func() store.LeaseID // the node's present lease; 0 while nothing may be claimed
	Deadman Deadman              // nil: none
	Hooks   hook.Runner          // of snapshot commands; without it they fail
	Metrics *Metrics
	Spinups Spinups // nil: nobody is told
	// PrewarmCgroupAttach is called beside each boot, and makes it shorter until done is closed; see
	// cgroup.ReadyAttach. It returns soon after that, or before. nil: nothing does.
	PrewarmCgroupAttach func(done <-chan struct{})
	// Networks are ready networks for templates that are Pooled; nil: none.
	Networks Networks
	// Warm are containers that run already, for templates that have some; nil:
	// none.
	Warm  WarmPool
	Mover Mover // nil: memory is lost with its container

	// Runtime says why containers of a runtime cannot be had on this node, nil
	// where they can. nil: all can.
	Runtime func(name string) error
	Log     *slog.Logger
}

// Watcher tells when a container's init dies. *kill.Watcher is one.
type Watcher interface {
	Add(t *kill.Target, dead func()) error
	Remove(t *kill.Target)
}

// Manager is the state machine of every session that this node owns. All
// methods may be called from any goroutine. Adopt comes first, then Run; the
// others work while Run does.
type Manager struct {
	cfg  Config
	deps Deps
	log  *slog.Logger

	boots    chan struct{} // a slot for each container being started
	thaws    atomic.Int32  // warm containers being claimed
	removals chan string   // containers to remove
	snaps    chan struct{} // a slot for each snapshot command

	suspends chan struct{} // a slot for each session that is suspended for being idle

	reclaims chan struct{} // a slot for each dead container whose memory is emptied
	pulls    *pulls
	begun    chan struct{} // closed when Run has begun

	askTime time.Duration // see takeOverAll

	prewarming atomic.Bool // a boot keeps the kernel ready for all

	tasks tasks.Group // open while Run is active; sealed with mu held

	mu         sync.Mutex
	sessions   map[holdfast.SessionKey]*entry
	draining   bool
	detached   []*entry        // stuck, and not the entry of their key
	adoption   *adoption       // nil outside Adopt
	generation leaseGeneration // of the node's lease
}

// entry is one session on this node. Its fields are guarded by Manager.mu, but
// for those that never change.
type entry struct {
	key           holdfast.SessionKey
	template      Template                // changes only before the entry is settled, by its boot
	templateNamed bool                    // somebody named the template; else it is the default one
	cancel        context.CancelCauseFunc // of the boot

	settled chan struct{} // closed when the boot has ended, well or not
	left    chan struct{} // closed when the session leaves
	dead    chan struct{} // closed when nothing of it runs, as was seen
	gone    chan struct{} // closed when the entry is out of the map

	route holdfast.Route // set before the entry is ready, and never again

	phase           phase
	owner           holdfast.Owner
	target          *kill.Target
	holder          *kill.Target // of the network that it joined; nil: it has its own
	conns           int
	idleSince       time.Time
	err             error // of the boot
	failedAt        time.Time
	stuck           bool            // asked to die and not seen dead
	stuckContainers []string        // containers of an earlier agent that are, where there is no target
	unwatched       bool            // nobody tells when it dies
	targetRefs      int             // others that kill the target; it stays open for them
	finished        bool            // the target is to be closed
	generation      leaseGeneration // that it became ready in
	snapshot        snapshot        // once it is taken, or has failed
	suspect         holdfast.Owner  // a record of this key that is to be looked at when the entry is gone
}

// phase is where an entry is; finer than the record's state.
type phase int

const (
	booting phase = iota
	ready
	leaving
	failed // nothing is left of it but the error
)

// failureMemory is how long a failed boot answers for the next ones, so that a
// template that cannot boot does not churn through containers at the clients'
// request rate.
const failureMemory = time.Second

// New returns a Manager that owns nothing yet.
func New(cfg Config, deps Deps) *Manager {
	if deps.Spinups == nil {
		deps.Spinups = noSpinups{}
	}
	if deps.Runtime == nil {
		deps.Runtime = func(string) error { return nil }
	}
	return &Manager{
		cfg: cfg, deps: deps, log: deps.Log,
		boots:      make(chan struct{}, cfg.Boots),
		removals:   make(chan string, 4096),
		snaps:      make(chan struct{}, cmp.Or(cfg.Snapshots, runtime.NumCPU())),
		suspends:   make(chan struct{}, suspendsAtOnce),
		reclaims:   make(chan struct{}, 4*runtime.NumCPU()),
		pulls:      newPulls(deps.Engine, deps.Spinups),
		begun:      make(chan struct{}),
		askTime:    askTime,
		generation: newLeaseGeneration(),
		sessions:   map[holdfast.SessionKey]*entry{},
	}
}

// Run keeps the sessions until ctx is done: it boots, stops the idle and tidies
// up. When it returns, nothing of it runs any more; the containers do.
func (m *Manager) Run(ctx context.Context) error {
	m.sweepIdentities() // before anything boots
	m.mu.Lock()
	if err := m.tasks.Open(ctx); err != nil {
		m.mu.Unlock()
		return fmt.Errorf("session: %w", err)
	}
	select {
	case <-m.begun: // an earlier Run has ended
	default:
		close(m.begun)
	}
	for _, e := range m.sessions {
		m.resumeLocked(e)
	}
	for _, e := range m.detached {
		m.resumeLocked(e)
	}
	m.mu.Unlock()

	m.tasks.Go(m.removeQueued)
	m.tasks.Go(m.removeQueued)
	if m.cfg.IdleStop > 0 {
		m.tasks.Go(m.stopIdle)
	}
	<-ctx.Done()
	m.mu.Lock()
	m.tasks.Seal()
	m.mu.Unlock()
	m.tasks.Close()
	return nil
}

// resumeLocked does for an adopted entry what nothing could be done for before
// Run.
func (m *Manager) resumeLocked(e *entry) {
	switch {
	case e.phase == ready && (e.target.Init().Exited() || e.networkLost()): // nobody could be told
		m.tasks.Go(func(ctx context.Context) { m.died(ctx, e) })
	case e.phase == ready && e.unwatched:
		m.tasks.Go(func(ctx context.Context) { m.watchLater(ctx, e) })
	case e.phase == leaving && e.stuck && e.target == nil:
		m.tasks.Go(func(ctx context.Context) { m.endStuck(ctx, e) })
	case e.phase == leaving && e.stuck: // the lease was lost meanwhile
		m.tasks.Go(func(ctx context.Context) { m.awaitDeath(ctx, e) })
	case e.phase == leaving && e.isDead():
		m.tasks.Go(func(ctx context.Context) { m.snapAndRelease(ctx, e) })
	}
}

// errNotRunning is returned outside Run: who asks should come again.
var errNotRunning = fmt.Errorf("the agent is starting or stopping: %w", holdfast.ErrDraining)

// Booting is how many containers are being started right now: those that only wait
// for an image, or for their turn, are none.
func (m *Manager) Booting() int { return len(m.boots) + int(m.thaws.Load()) }

// beginLocked makes an entry and starts its boot.
func (m *Manager) beginLocked(key holdfast.SessionKey, template string) (*entry, error) {
	if m.draining {
		return nil, fmt.Errorf("session %s: %w", key, holdfast.ErrDraining)
	}
	if m.cfg.Max > 0 && len(m.sessions) >= m.cfg.Max {
		return nil, holdfast.WithHint(fmt.Errorf("session %s: %d sessions run on this node: %w", key, m.cfg.Max, holdfast.ErrBusy),
			"stop one, or raise sessions.max")
	}
	t, err := m.template(template)
	if err != nil {
		return nil, err
	}
	if err := m.deps.Runtime(t.Runtime); err != nil {
		return nil, fmt.Errorf("session %s: template %s: %w", key, t.Name, err)
	}
	life := m.tasks.Context()
	if life == nil {
		return nil, fmt.Errorf("session %s: %w", key, errNotRunning)
	}
	ctx, cancel := context.WithCancelCause(life)
	e := newEntry(key, t)
	e.cancel, e.templateNamed = cancel, template != ""
	m.sessions[key] = e
	m.tasks.Go(func(life context.Context) {
		defer cancel(nil)
		m.boot(ctx, life, e)
	})
	return e, nil
}

func newEntry(key holdfast.SessionKey, t Template) *entry {
	return &entry{
		key: key, template: t, cancel: func(error) {},
		settled: make(chan struct{}), left: make(chan struct{}), dead: make(chan struct{}), gone: make(chan struct{}),
	}
}

// markDeadLocked takes note that nothing of the entry runs; what is left is to give
// it up. It may be called more than once.
func (e *entry) markDeadLocked() {
	if !e.isDead() {
		close(e.dead)
	}
}

func (e *entry) isDead() bool {
	select {
	case <-e.dead:
		return true
	default:
		return false
	}
}

// template finds a template by name; "" is the default one.
func (m *Manager) template(name string) (Template, error) {
	for _, t := range m.cfg.Templates {
		if name == "" || t.Name == name {
			return t, nil
		}
	}
	return Template{}, holdfast.WithHint(fmt.Errorf("template %q: %w", name, holdfast.ErrNotFound),
		"the templates are in the agent's configuration")
}

// CanRun is why sessions of the template cannot be had on this node, nil where they
// can, as far as is known.
func (m *Manager) CanRun(name string) error {
	t, err := m.template(name)
	if err != nil {
		return err
	}
	return m.deps.Runtime(t.Runtime)
}

// dropLocked takes the entry out of the map for good.
func (m *Manager) dropLocked(e *entry) {
	if m.sessions[e.key] == e {
		delete(m.sessions, e.key)
	}
	select {
	case <-e.gone:
		return
	default:
		close(e.gone)
	}
	if e.suspect.Epoch != 0 && e.suspect.Epoch != e.owner.Epoch {
		m.reclaimOrphanLocked(e.suspect)
	}
}
