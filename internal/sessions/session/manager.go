package session

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/frozen"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/hook"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
)

// Config is the configuration of a Manager.
type Config struct {
	Node      holdfast.NodeID
	Store     string        // StoreID of Deps.Store, as in the templates
	Templates []Template    // the first is the default; at least one
	IdleStop  time.Duration // time without a connection or a command after which a session is stopped; 0 means never
	Boots     int           // containers that start at once, over 0
	Max       int           // sessions at once, 0 means no limit

	// Others reports that other nodes can be asked for a session. If the lease does
	// not allow a claim, the request then fails at once with holdfast.ErrStore instead
	// of waiting.
	Others    bool
	Snapshots int // snapshot commands at once; 0 means one for each CPU

	// CheckEvery is the interval at which the node compares what it runs with its
	// records in the store. It is over 0 and well under the fence.
	CheckEvery time.Duration

	// IdentityRoot is a directory of this host for the identities of containers with a
	// runtime (see IdentityDir). "" writes none. Show puts a program into an identity's
	// directory; it may be nil.
	IdentityRoot string
	Show         func(dir string) error

	// Resuming is a directory of this host for the suspend notes of boots that have not taken
	// the image yet. "" keeps none: an agent that is killed then loses the memory.
	Resuming string

	// Frozen has the notes of containers that this process has frozen.
	Frozen frozen.Notes
}

// Deps are the dependencies of a Manager.
type Deps struct {
	Store   store.Store
	Engine  engine.Engine
	Opener  *kill.Opener
	Killer  *kill.Killer
	Watcher Watcher
	Lease   func() store.LeaseID // the node's present lease; 0 while the node may not claim
	Cloned  func() bool          // Lease.Cloned; nil: never
	Deadman Deadman              // may be nil
	Hooks   hook.Runner          // runs snapshot commands; if nil they fail
	Metrics *Metrics
	Spinups Spinups // may be nil
	// Assign returns the template from which a session boots, given the requested one: an
	// experiment may replace it by another. It does not block. If it is nil, none is
	// replaced.
	Assign func(key holdfast.SessionKey, template string) string
	// Pull pulls an image, with the host's login for its registry. It returns the figures
	// of the pull, also of a failed one.
	Pull func(ctx context.Context, image string) (spinup.Pull, error)
	// PrewarmCgroupAttach runs beside each boot and shortens it until done is closed;
	// see cgroup.ReadyAttach. It returns soon after that, or earlier. It may be nil.
	PrewarmCgroupAttach func(done <-chan struct{})
	// Networks are the agent's, for templates that are Pooled. It may be nil.
	Networks pool.Networks
	// Warm are warm containers, for templates that have a warm pool. It may be nil.
	Warm  WarmPool
	Mover Mover // nil: memory is lost with its container
	// Reporter learns what happens to sessions. It may be nil.
	Reporter Reporter
	// DeadmanFired returns when the deadman has killed this node's containers last; the
	// zero time: never. It may be nil.
	DeadmanFired func() time.Time
	// Commands reports whether detached commands run in a session's container, which is
	// then neither idle nor asleep, and when the last one ran: now, or its end. The zero
	// time: none is known. nil: none do.
	Commands func(ctx context.Context, key holdfast.SessionKey) (last time.Time, running bool, err error)

	// Runtime returns why this node cannot run containers of a runtime, or nil if it
	// can. If Runtime is nil, all runtimes work.
	Runtime func(name string) error
	Log     *slog.Logger
}

// Watcher reports when a container's init dies. *kill.Watcher implements it.
type Watcher interface {
	Add(t *kill.Target, dead func()) error
	Remove(t *kill.Target)
}

// Manager is the state machine of every session that this node owns. Any goroutine may
// call its methods. Adopt is called first, then Run. The other methods work while Run
// is active.
type Manager struct {
	cfg  Config
	deps Deps
	log  *slog.Logger

	boots    chan struct{} // a slot for each container being started
	thaws    atomic.Int32  // warm containers being claimed
	removals chan string   // containers to remove
	snaps    chan struct{} // a slot for each running snapshot command

	suspends chan struct{} // a slot for each idle session that is being suspended

	reclaims chan struct{} // a slot for each dead container whose memory is being reclaimed
	pulls    *pulls

	check  tasks.Signal // compare with the store now
	timers tasks.Signal // the times of suspended sessions have changed

	askTime time.Duration // see takeOverAll

	prewarming atomic.Bool // a boot keeps the kernel's cgroup attach path active for all boots

	tasks tasks.Group // open while Run is active; sealed with mu held

	mu         sync.Mutex
	sessions   map[holdfast.SessionKey]*entry
	begun      chan struct{} // closed, and replaced, with each boot
	orphans    int           // entries that only wait for the release of an orphan record, if it exists
	draining   bool
	detached   []*entry        // stuck entries that are not the entry of their key
	adoption   *adoption       // nil outside Adopt
	generation leaseGeneration // of the node's lease
}

// entry is one session on this node. Manager.mu guards its fields, except those that
// never change.
type entry struct {
	key           holdfast.SessionKey
	template      Template                // only its boot changes it, before the entry is settled
	templateNamed bool                    // the request named the template; otherwise it is the default one
	keeps         bool                    // it only takes the image of a suspended session
	cancel        context.CancelCauseFunc // of the boot

	settled chan struct{} // closed when the boot has ended, successfully or not
	left    chan struct{} // closed when the session leaves
	dead    chan struct{} // closed when all its processes were seen dead
	gone    chan struct{} // closed when the entry is removed from the map

	route holdfast.Route // set before the entry is ready, then constant

	phase           phase
	claimed         holdfast.Epoch // of the boot, once it has claimed
	owner           holdfast.Owner // set when the boot has succeeded
	target          *kill.Target
	holder          *kill.Target // by way of which its container joins the network, during the boot
	network         netip.Addr   // address in a network of Deps.Networks
	conns           int
	execs           int  // commands that run and end with their caller, and those that are being started
	detached        bool // detached commands may run
	idleSince       time.Time
	err             error // of the boot
	failedAt        time.Time
	disowned        bool                // its record is gone or belongs to another claim
	stuck           bool                // killed and not seen dead
	stuckContainers []string            // stuck containers of an earlier agent, if there is no target
	unwatched       bool                // no watcher reports its death
	targetRefs      int                 // number of other users that kill the target; it stays open for them
	finished        bool                // the target is to be closed when targetRefs is 0
	generation      leaseGeneration     // lease generation in which it became ready
	snapshot        snapshot            // set when the snapshot command has succeeded or failed
	end             ending              // why and how it ends
	sleeper         *sleeper            // nil: it never sleeps
	cron            time.Time           // next time of its template; the zero time: none
	begunBy         holdfast.WakeReason // why its boot began
	wokenBy         holdfast.WakeReason // what resumed it; "": it was not suspended
	suspect         holdfast.Owner      // a record of this key, checked when the entry is gone
}

// phase is the phase of an entry. It is finer than the record's state.
type phase int

const (
	booting phase = iota
	ready
	leaving
	failed // only its error is left
)

// failureMemory is how long the error of a failed boot answers further requests, so
// that a template that cannot boot does not create containers at the rate of the
// clients' requests.
const failureMemory = time.Second

// New returns a Manager without sessions.
func New(cfg Config, deps Deps) *Manager {
	if deps.Spinups == nil {
		deps.Spinups = noSpinups{}
	}
	if deps.Deadman == nil {
		deps.Deadman = noDeadman{}
	}
	if deps.Assign == nil {
		deps.Assign = func(_ holdfast.SessionKey, template string) string { return template }
	}
	if deps.Reporter == nil {
		deps.Reporter = noReporter{}
	}
	if deps.DeadmanFired == nil {
		deps.DeadmanFired = func() time.Time { return time.Time{} }
	}
	if deps.Runtime == nil {
		deps.Runtime = func(string) error { return nil }
	}
	m := &Manager{
		cfg: cfg, deps: deps, log: deps.Log,
		boots:      make(chan struct{}, cfg.Boots),
		removals:   make(chan string, 4096),
		snaps:      make(chan struct{}, cmp.Or(cfg.Snapshots, runtime.NumCPU())),
		suspends:   make(chan struct{}, suspendsAtOnce),
		timers:     tasks.NewSignal(),
		reclaims:   make(chan struct{}, 4*runtime.NumCPU()),
		check:      tasks.NewSignal(),
		pulls:      newPulls(deps.Pull),
		askTime:    askTime,
		generation: newLeaseGeneration(),
		sessions:   map[holdfast.SessionKey]*entry{},
		begun:      make(chan struct{}),
	}
	deps.Metrics.count.Store(m)
	return m
}

// Run boots sessions, stops idle ones and removes dead containers until ctx is done.
// When Run returns, none of its goroutines is running. The containers keep running, and
// none sleeps.
func (m *Manager) Run(ctx context.Context) error {
	m.sweepIdentities() // before the first boot
	m.dropNotes()       // likewise
	if n, err := m.cfg.Frozen.ThawEarlier(); err != nil || n > 0 {
		m.log.Warn("thawed containers that an earlier agent had frozen", "containers", n, "err", err)
	}
	m.mu.Lock()
	if err := m.tasks.Open(ctx); err != nil {
		m.mu.Unlock()
		return fmt.Errorf("session: %w", err)
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
	m.tasks.Go(m.checkAlways)
	m.tasks.Go(m.sampleMemory)
	m.tasks.Go(m.sleepIdle)
	m.tasks.Go(m.wakeByTime)
	if m.deps.Mover != nil {
		m.tasks.Go(m.resumeByTime)
	}
	if !m.cfg.Others { // otherwise the fleet's directory sees every record
		m.tasks.Go(m.watchOwnRecords)
	}
	if m.cfg.IdleStop > 0 {
		m.tasks.Go(m.stopIdle)
	}
	<-ctx.Done()
	m.mu.Lock()
	m.tasks.Seal()
	kept := len(m.sessions) > m.orphans // for the next agent, which waits
	m.mu.Unlock()
	m.tasks.Close()
	m.wakeAll()
	if !kept {
		m.removeLast()
	}
	return nil
}

// resumeLocked does for an adopted entry what has to wait for Run.
func (m *Manager) resumeLocked(e *entry) {
	switch {
	case e.phase == ready && e.target.Init().Exited(): // there was no Run to report it to
		m.tasks.Go(func(ctx context.Context) { m.died(ctx, e) })
	case e.phase == ready && e.unwatched:
		m.tasks.Go(func(ctx context.Context) { m.watchLater(ctx, e) })
	case e.phase == leaving && e.stuck && e.target == nil:
		m.tasks.Go(func(ctx context.Context) { m.endStuck(ctx, e) })
	case e.phase == leaving && e.stuck: // the lease was lost meanwhile
		m.tasks.Go(func(ctx context.Context) { m.awaitDeath(ctx, e) })
	case e.phase == leaving && e.isDead():
		m.tasks.Go(func(ctx context.Context) { m.snapAndRelease(ctx, e) })
	case e.phase == ready && e.owner.Memory == holdfast.Saving:
		m.tasks.Go(func(ctx context.Context) { m.awaitSaved(ctx, e) })
	}
}

// errNotRunning is returned outside Run. The caller should retry.
var errNotRunning = fmt.Errorf("the agent is starting or stopping: %w", holdfast.ErrDraining)

// Booting returns the number of containers that are starting. Boots that wait for an image
// or for a slot do not count.
func (m *Manager) Booting() int { return len(m.boots) + int(m.thaws.Load()) }

// beginLocked creates an entry and starts its boot. If the session is suspended, it continues
// because of by.
func (m *Manager) beginLocked(key holdfast.SessionKey, template string, by holdfast.WakeReason) (*entry, error) {
	e, err := m.beginEntryLocked(key, template, false)
	if err == nil {
		e.begunBy = by
	}
	return e, err
}

// beginEntryLocked is beginLocked. With keeps the entry only takes the image of a suspended
// session (see KeepSuspended).
func (m *Manager) beginEntryLocked(key holdfast.SessionKey, template string, keeps bool) (*entry, error) {
	if m.draining {
		return nil, fmt.Errorf("session %s: %w", key, holdfast.ErrDraining)
	}
	if m.cfg.Max > 0 && len(m.sessions)-m.orphans >= m.cfg.Max {
		return nil, holdfast.WithHint(fmt.Errorf("session %s: %d sessions run on this node: %w", key, m.cfg.Max, holdfast.ErrBusy),
			"stop one, or raise sessions.max")
	}
	t, err := m.templateFor(key, template)
	if err != nil {
		return nil, err
	}
	if err := m.fits(key, t); err != nil {
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
	e.cancel, e.templateNamed, e.keeps = cancel, template != "" && !keeps, keeps
	m.sessions[key] = e
	close(m.begun)
	m.begun = make(chan struct{})
	if !keeps {
		m.deps.Reporter.Emit(holdfast.SessionEvent{Type: holdfast.EventRequested, Key: key, Template: t.Name})
	}
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

// newLeavingEntry returns the entry of a record whose session only has to end.
func newLeavingEntry(o holdfast.Owner) *entry {
	e := newEntry(o.Key, Template{Name: o.Template})
	e.owner, e.phase = o, leaving
	close(e.settled)
	close(e.left)
	return e
}

// markDeadLocked records that no process of the entry runs any more. What remains is
// its release. It may be called more than once.
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

// templateFor returns the template that a boot of the key uses, given the requested one.
func (m *Manager) templateFor(key holdfast.SessionKey, requested string) (Template, error) {
	t, err := m.template(requested)
	if err != nil {
		return t, err
	}
	return m.template(m.deps.Assign(key, t.Name))
}

// template returns a template by name; "" is the default one, which is never that of a
// group.
func (m *Manager) template(name string) (Template, error) {
	for _, t := range m.cfg.Templates {
		if name == "" && t.Replicas == 0 || name != "" && t.Name == name {
			return t, nil
		}
	}
	if name == "" {
		return Template{}, holdfast.WithHint(fmt.Errorf("a template without replicas: %w", holdfast.ErrNotFound),
			"every template has replicas, so a session needs the key of a group")
	}
	return Template{}, holdfast.WithHint(fmt.Errorf("template %q: %w", name, holdfast.ErrNotFound),
		"the templates are in the agent's configuration")
}

// fits returns why a session of the template may not have the key, or nil if it may.
func (m *Manager) fits(key holdfast.SessionKey, t Template) error {
	for _, g := range m.cfg.Templates {
		replica, own := holdfast.IsReplicaKey(g.Name, key), g.Name == t.Name
		if g.Replicas > 0 && (own && !replica || !own && (replica || string(key) == g.Name)) {
			return holdfast.WithHint(fmt.Errorf("session %s from template %s: the keys of group %s are for its replicas only: %w", key, t.Name, g.Name, holdfast.ErrNotFound),
				"choose another key; `holdfast session ls` shows the replicas")
		}
	}
	return nil
}

// CanRun returns why this node cannot run sessions of the template, or nil if nothing
// is known against it.
func (m *Manager) CanRun(name string) error {
	t, err := m.template(name)
	if err != nil {
		return err
	}
	return m.deps.Runtime(t.Runtime)
}

// dropLocked removes the entry from the map for good.
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
