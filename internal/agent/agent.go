package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast"
	"holdfast/internal/agent/cureguard"
	"holdfast/internal/agent/e2bnode"
	"holdfast/internal/agent/eventnode"
	"holdfast/internal/agent/execnode"
	"holdfast/internal/agent/filenode"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/agent/jobnode"
	"holdfast/internal/agent/netnode"
	"holdfast/internal/agent/portnode"
	"holdfast/internal/agent/process"
	"holdfast/internal/agent/sessionnode"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/service"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/history"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/experiment"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/hosts/spinup/puller"
	"holdfast/internal/hosts/spinup/recorder"
	"holdfast/internal/platform/coalesce"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/platform/linux/frozen"
	"holdfast/internal/platform/linux/hostload"
	"holdfast/internal/platform/sdnotify"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/embedded"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/deadman"
	"holdfast/internal/sessions/drain"
	"holdfast/internal/sessions/files"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/gateway"
	"holdfast/internal/sessions/group"
	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/move"
	"holdfast/internal/sessions/pool/container"
	"holdfast/internal/sessions/pool/network"
	"holdfast/internal/sessions/preempt"
	"holdfast/internal/sessions/replace"
	"holdfast/internal/sessions/runtimes"
	"holdfast/internal/sessions/session"
)

// Options are the settings of the agent beside its configuration.
type Options struct {
	Version string
	Log     *slog.Logger
	// Guardian is the command line that runs guardian.Main in a new process of this
	// binary.
	Guardian []string
	// Deadman is the command line for deadman.Main, without its last argument.
	Deadman []string
	// Hook is the command line for hook.Main, without its last arguments.
	Hook []string
	// Commands and JobWatcher are the command lines for execnode.Main, without its last
	// argument, and of the watcher of a job, without its last two.
	Commands, JobWatcher []string
	// Alloc is the command line for probe.Alloc, without its last argument. Empty: the
	// time to allocate memory is not measured.
	Alloc []string
	// Next is the command line of the next agent at an upgrade: the program on disk, with
	// the arguments of this process. Empty: upgrades are off.
	Next []string
	// Stdout and Stderr are inherited by the next agent.
	Stdout, Stderr io.Writer
	// Up is called once all listeners serve; may be nil.
	Up func(Addresses)
	// Step and Drained report the progress and the result of the final drain; may be nil.
	Step    func(holdfast.Step)
	Drained func(holdfast.DrainReport)
}

// Addresses are the addresses on which an agent serves.
type Addresses struct {
	Node    holdfast.NodeID
	Gateway string // URL
	API     string // URL, "" for none
	Socket  string // path
}

// ErrLeft is returned by Serve if the final drain left containers or records behind.
var ErrLeft = errors.New("the drain left something behind")

// registry registers the metrics of the agent, and gathers them.
type registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Agent is the agent of one node. Serve creates it, and calls Run once.
type Agent struct {
	cfg  config.Config
	opt  Options
	log  *slog.Logger
	node holdfast.NodeID
	host string // process.Host of the data directory

	stopOnce sync.Once
	stop     chan handoff.ShutdownMode

	listenerSet *handoff.Listeners
	turn        *handoff.Turn        // nil: no agent is before this one
	connections *handoff.Connections // of the agent before this one
	upgrades    *handoff.Upgrades

	// Set by Run, in this order, before anything serves.
	metrics     registry
	works       *runtimes.Checker
	drainer     *drain.Drainer
	replacer    *replace.Sessions
	groups      *group.Groups
	kept        *coalesce.Reader[keptSessions] // all sessions, as the store has them
	store       store.Store
	storeID     string
	embedded    *embedded.Store // nil with a cluster's store
	engine      engine.Engine
	socket      string // of the engine
	spinups     *recorder.Host
	experiments *experiment.Experiments
	collector   *gc.Collector
	opener      *kill.Opener
	frozen      frozen.Notes
	killer      *kill.Killer
	pausing     *kill.Killer
	deadman     *deadman.Client // nil with an embedded store
	lease       *session.Lease
	peers       *peers       // nil for a node without a fleet
	fleet       *fleet.Fleet // likewise
	mover       *move.Mover  // nil: no template asks for it
	gateway     *gateway.Gateway
	health      *health
	serving     atomic.Bool // requests of other nodes are answered
	networks    netnode.Networks
	warmPool    *container.Pool
	sessions    *session.Manager
	past        *eventnode.Node
	commands    *execnode.Node
	files       *files.Files
	ports       *portnode.Node
	jobs        *jobnode.Node
	prefetch    *prefetch.Keeper
	pulls       *puller.Puller
	load        *hostload.Meter
	published   atomic.Pointer[holdfast.Node] // record that this node published last
	doctor      *service.Doctor               // nil if it is switched off
	cureGuard   *cureguard.Guard
	since       time.Time
	history     *replace.History
	replacing   sync.Mutex    // one replacement of sessions at a time
	background  func() error  // waits for the requests that are under way after a handoff
	left        []connfd.Conn // connections of clients for the next agent
}

// newAgent returns an agent that has started nothing.
func newAgent(cfg config.Config, opt Options, d *handoff.Listeners, u *handoff.Upgrades) *Agent {
	a := &Agent{
		cfg: cfg, opt: opt, log: opt.Log, node: holdfast.NodeID(cfg.Node),
		listenerSet: d, upgrades: u,
		history: replace.NewHistory(cfg.DataDir),
		stop:    make(chan handoff.ShutdownMode, 1), load: hostload.New("/proc"),
	}
	a.published.Store(&holdfast.Node{})
	return a
}

// Run serves until End is called, or until ctx is done, which drains the node. When it
// returns, every goroutine of the agent has stopped. One exception: after a handoff,
// requests under way continue, and background waits for them. An error from the drain wraps
// ErrLeft. With any other error the agent could not start or continue; it leaves the
// containers as they are, to the next agent.
func (a *Agent) Run(ctx context.Context) (err error) {
	a.since = time.Now()
	a.metrics = process.NewRegistry()
	a.kept = coalesce.New(a.readSessions)
	a.metrics.MustRegister(history.NewMetrics(protect.LockDir, a.log))
	a.upgrades.Register(a.metrics)

	lock, node, err := process.Prepare(a.cfg, a.log)
	if err != nil {
		return err
	}
	a.node = node
	defer lock.Close()
	if a.host, err = process.Host(a.cfg.DataDir); err != nil {
		return err
	}
	if err := a.openIdentity(); err != nil {
		return err
	}
	l, err := a.listen()
	if err != nil {
		return err
	}
	defer l.close()
	closeStore, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	e, info, err := a.openEngine(ctx)
	if err != nil {
		return err
	}
	defer e.Close()
	engineLock, err := a.ownContainers(ctx, info)
	if err != nil {
		return err
	}
	defer engineLock.Close()
	a.spinups = a.newSpinups(info)
	a.collector = a.newCollector(e)
	a.cureGuard = cureguard.New(a.opt.Guardian, a.cfg.RunDir, a.log)
	a.doctor = a.newDoctor(e)

	p := tasks.NewStack()
	defer func() { a.deadman.Close() }() // it continues for the next agent
	defer func() { err = errors.Join(err, a.cureGuard.Close()) }()
	defer func() { err = errors.Join(err, p.Stop()) }()
	if err := a.startSessions(ctx, p); err != nil {
		return err
	}
	front := p.Fork()
	defer func() { err = errors.Join(err, front.Stop()) }()
	if err := a.serve(p, front, l); err != nil {
		return err
	}
	taken, _ := a.sessions.Counts()
	a.upgrades.Serving(taken)
	a.notify("READY=1")
	a.turn.Say(handoff.Up)
	if a.opt.Up != nil {
		a.opt.Up(l.addresses(a.cfg, a.node))
	}
	how, err := a.wait(ctx, p)
	if err != nil {
		return err
	}
	a.turn.Say(handoff.Ending)
	if how.Keep {
		a.leave(how, front, l)
		return nil
	}
	return a.drainAndEnd(ctx, front, p)
}

// openEngine connects to the container engine and checks that it can serve sessions.
func (a *Agent) openEngine(ctx context.Context) (process.Engine, engine.Info, error) {
	e, info, err := process.OpenSuitable(ctx, a.cfg)
	if err != nil {
		return nil, info, err
	}
	a.log.Info("engine", "name", info.Name, "version", info.Version, "storage", info.StorageDriver, "cgroup", info.CgroupVersion)
	a.engine, a.socket = e, info.Socket
	return e, info, nil
}

// newSpinups returns the recorder of this host's spin-ups.
func (a *Agent) newSpinups(info engine.Info) *recorder.Host {
	return recorder.NewHost(recorder.HostOptions{
		Options: recorder.Options{File: filepath.Join(a.cfg.DataDir, spinup.FileName), Config: a.cfg.Spinup, Metrics: a.metrics, Log: a.log},
		Node:    string(a.node), RunDir: a.cfg.RunDir, Engine: a.engine, Info: info,
		Own: []string{session.LabelSession, session.LabelWarm, network.Label, spinup.LabelJob, engine.LabelTrial},
	})
}

// startSessions takes the lease, adopts the sessions of an earlier agent, and starts the
// parts that serve sessions.
func (a *Agent) startSessions(ctx context.Context, p *tasks.Stack) error {
	a.experiments = experiment.New(experiment.Config{Node: a.node, Specs: a.cfg.ExperimentSpecs()}, experiment.Deps{
		Store: a.store, Lease: func() store.LeaseID { return a.lease.ID() }, Report: a.fleetSpinups().Report, Metrics: a.metrics, Log: a.log,
	})
	a.spinups.Arms = a.experiments.Arms
	p.Start("records of spin-ups", a.spinups.Run)
	p.Start("cures", func(ctx context.Context) error { return cure.Follow(ctx, a.cfg.DataDir, a.log) })
	p.Start("the engine", a.engine.Run)
	if err := a.startGuardian(p); err != nil {
		return err
	}
	dead, err := a.startDeadman(p)
	if err != nil {
		return err
	}
	restores := session.NewRestores(a.store, filepath.Join(a.cfg.DataDir, "store-seen"), a.restoreHold(), a.metrics, a.log)
	restores.Load()
	p.Start("restores of the store", restores.Run)
	a.lease = session.NewLease(a.leaseConfig(), a.store, a.log)
	if err := a.lease.Hold(ctx); err != nil {
		return err
	}
	a.turn.Say(handoff.Held)
	watcher, err := kill.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching containers: %w", err)
	}
	p.Start("watching containers", watcher.Run)
	a.works = runtimes.New(runtimes.Trials(a.templates()), a.turn != nil, a.engine, a.metrics, a.log)
	a.health = &health{engine: a.engine, works: a.works, log: a.log}
	a.metrics.MustRegister(upkeepMetric(a.engine))
	p.Start("health", a.health.Run)
	a.networks = a.newNetworks()
	a.mover, a.pulls = a.newMover(), a.newPuller()
	a.warmPool = a.newWarmPool(dead)
	p.Start("runtimes", a.works.Run)
	a.past = eventnode.New(a.cfg, a.node, eventnode.Fleet{Store: a.store, Client: a.clientTo}, a.metrics, a.log)
	p.Start("events of sessions", a.past.Run)
	deps := session.Deps{
		Store: a.store, Engine: a.engine, Opener: a.opener, Killer: a.killer, Watcher: watcher, Deadman: dead, Hooks: a.opt.Hook,
		Lease: a.lease.ID, Cloned: a.lease.Cloned, Metrics: session.NewMetrics(a.metrics), Spinups: a.spinups, Pull: a.pullFor, Networks: a.networks, Warm: warmContainers{a.warmPool}, Log: a.log,
		Runtime: a.works.Check, Assign: a.experiments.Template, PrewarmCgroupAttach: a.prewarmCgroupAttach, Reporter: a.past, DeadmanFired: a.deadman.Fired, Commands: func(ctx context.Context, key holdfast.SessionKey) (time.Time, bool, error) {
			return a.commands.LastUse(ctx, key)
		},
	}
	if a.mover != nil {
		deps.Mover = a.mover
	}
	program := &filenode.Program{}
	a.sessions = session.New(session.Config{
		Node: a.node, Store: a.storeID, Templates: a.templates(),
		Others: a.peers != nil, IdleStop: a.cfg.Sessions.IdleStop, Boots: a.cfg.Sessions.Boots, Max: a.cfg.Sessions.Max, Snapshots: a.cfg.Sessions.Snapshots,
		CheckEvery: a.checkEvery(), IdentityRoot: filepath.Join(a.cfg.DataDir, "identity"), Resuming: filepath.Join(a.cfg.DataDir, "resuming"), Show: program.Show, Frozen: a.frozen,
	}, deps)
	a.drainer = a.newDrainer()
	if a.drainer.Cordoned() {
		a.log.Warn("this node is cordoned: it refuses new sessions until `holdfast node uncordon`")
		a.sessions.Cordon()
	}
	a.registerNodeFigures()
	p.Start("spin-ups by others", a.spinups.Others().Run)
	// The lease is renewed during the adoption, which may take long.
	p.Start("lease", func(ctx context.Context) error { return a.lease.Run(ctx, a.self, a.sessions.LeaseLost) })
	found, err := a.adopt(ctx)
	if err != nil {
		return fmt.Errorf("taking over from an earlier agent: %w", err)
	}
	if found != (session.Adopted{}) {
		a.log.Info("took over from an earlier agent", "sessions", found.Sessions, "strays", found.Orphans, "released", found.Released, "stuck", found.Stuck)
	}
	if a.commands, err = execnode.New(a.cfg, a.opt.Commands, a.engine, a.sessions, a.metrics, a.log); err != nil {
		return err
	}
	p.Start("sessions", a.sessions.Run)
	p.Start("detached commands", a.commands.Run)
	a.files, a.ports = filenode.New(a.sessions, a.engine, program, a.metrics), portnode.New(a.sessions, a.metrics)
	if a.mover != nil {
		p.Start("suspended sessions", a.mover.Run)
	}
	p.Start("networks of sessions", a.networks.Run)
	p.Start("warm containers", a.warmPool.Run)
	if a.peers != nil {
		a.fleet = a.newFleet()
		p.Start("fleet", a.fleet.Run)
	}
	a.replacer = a.newReplacer()
	p.Start("groups of replicas", a.groups.Run)
	p.Start("experiments", a.experiments.Run)
	return nil
}

// adopt takes over the sessions of an earlier agent. It starts again each time that the
// lease is lost meanwhile.
func (a *Agent) adopt(ctx context.Context) (session.Adopted, error) {
	for {
		found, err := a.sessions.Adopt(ctx)
		if !errors.Is(err, session.ErrLeaseLost) || ctx.Err() != nil {
			return found, err
		}
		a.log.Warn("the lease was lost while an earlier agent's sessions were taken over; looking again", "err", err)
		if tasks.Sleep(ctx, a.cfg.Store.Renew) != nil {
			return found, ctx.Err()
		}
	}
}

// local adapts this node's sessions to the gateway.
type local struct{ *session.Manager }

func (l local) Acquire(ctx context.Context, key holdfast.SessionKey, boot func() error) (holdfast.Route, func(), error) {
	if boot == nil {
		return l.Manager.Acquire(ctx, key, "")
	}
	return l.AcquireIf(ctx, key, "", boot)
}

// newGateway returns the gateway, to this node's sessions or to those of the fleet.
func (a *Agent) newGateway() (*gateway.Gateway, error) {
	m := gateway.NewMetrics(a.metrics)
	if a.fleet == nil {
		return gateway.New(a.cfg.Gateway.Config, a.groups.Router(local{a.sessions}, a.sessions.Owner), nil, m, a.log)
	}
	return gateway.New(a.cfg.Gateway.Config, a.groups.Router(a.fleet, a.fleet.Directory().Owner), a.peers, m, a.log)
}

// serve starts the API, the fleet listener and the gateway. The tasks of front carry
// requests of clients.
func (a *Agent) serve(p, front *tasks.Stack, l *listeners) error {
	g, err := a.newGateway()
	if err != nil {
		return err
	}
	tokens, err := api.OpenTokens(api.TokenFiles{Admin: a.cfg.API.TokenFile, Read: a.cfg.API.ReadTokenFile}, a.log)
	if err != nil {
		return err
	}
	a.keepPrefetched(p)
	if err := a.newJobs(p); err != nil {
		return err
	}
	p.Start("garbage collection", a.runCollector)
	if a.doctor != nil {
		a.doctor.Start(p)
	}
	prom := promhttp.HandlerFor(a.metrics, promhttp.HandlerOpts{})
	parts := a.apiParts()
	routes := func(o api.Options) http.Handler {
		o.Metrics, o.Log = prom, a.log
		if a.peers != nil {
			o.Forward = a.forward
		}
		return api.New(parts, o)
	}
	p.Start("api socket", func(ctx context.Context) error {
		return api.Serve(ctx, l.socket, routes(api.Options{Admin: true}), a.log)
	})
	if l.api != nil {
		if err := a.serveAPI(p, l.api, api.Options{Tokens: tokens, Logins: api.NewLogins(tokens, a.log)}, routes); err != nil {
			return err
		}
	}
	a.gateway = g
	if l.fleet != nil {
		front.Start("fleet listener", func(ctx context.Context) error {
			return api.ServeUpTo(ctx, a.cfg.Gateway.MaxConnections+fleetConns, l.fleet, a.fleetHandler(g, routes(api.Options{Peer: callerOf})), a.log)
		})
	}
	p.Start("unused memory", process.ReturnMemory)
	p.Start("preemption notices", func(ctx context.Context) error {
		r := preempt.Responder{Drainer: a.drainer, Options: drainOptions(a.cfg.Drain, api.DrainRequest{}), Metrics: preempt.NewMetrics(a.metrics), Log: a.log}
		return r.Run(ctx, a.cfg.Preempt.Sources())
	})
	sdks, err := e2bnode.New(a.cfg, a.node, a.store, a.metrics, a.log)
	if err != nil {
		return err
	}
	if sdks != nil {
		front.Start("SDKs of E2B", func(ctx context.Context) error { return sdks.Run(ctx, l.e2b) })
	}
	front.Start("gateway", func(ctx context.Context) error { return g.Run(ctx, l.gateway, l.tcp...) })
	p.Start("connections of the agent before", a.takeConnections)
	a.serving.Store(true)
	a.lease.Changed()
	return nil
}

func (a *Agent) newDrainer() *drain.Drainer {
	return &drain.Drainer{
		Host: func(last bool) drain.Node {
			return &drain.Host{
				NodeID: a.node, Sessions: a.sessions, Engine: a.engine, Opener: a.opener, Killer: a.killer, Pausing: a.pausing,
				Fleet: a.fleet, Last: last, InFlight: a.gateway.InFlight, Changed: a.lease.Changed, Suspended: a.ownSuspended,
			}
		},
		Sessions: a.sessions, Changed: a.lease.Changed, CordonFile: filepath.Join(a.cfg.DataDir, "cordoned"),
		Metrics: drain.NewMetrics(a.metrics), Log: a.log,
	}
}

// newReplacer returns the part that replaces and hands over single sessions, and makes the
// groups of replicas, which use it.
func (a *Agent) newReplacer() *replace.Sessions {
	n := &sessionnode.Node{ID: a.node, Sessions: a.sessions, Engine: a.engine}
	if a.peers != nil {
		n.Client = a.clientOf
	}
	n.Replacer = &replace.Sessions{Node: a.node, Store: a.store, Manager: a.sessions, Fleet: a.fleet, EndAt: n.EndAt}
	a.groups = group.New(group.Config{Node: a.node, Specs: a.cfg.Groups(), Others: a.peers != nil},
		group.Deps{Store: a.store, Lease: a.lease.ID, Sessions: n, History: a.history, Metrics: group.NewMetrics(a.metrics), Log: a.log})
	return n.Replacer
}

// self returns the record that this node publishes, every few seconds from the loop of the
// lease. It takes the locks of the sessions and of the pools before it notifies the
// service manager's watchdog (sd_watchdog_enabled(3)): the watchdog ends an agent in which
// one of these locks is stuck. An unreachable store or engine does not delay the
// notification.
func (a *Agent) self() holdfast.Node {
	sessions, boots := a.sessions.Counts()
	n := holdfast.Node{
		ID: a.node, Address: a.cfg.Gateway.Listen, PeerAddress: a.cfg.Fleet.Advertise, Version: a.opt.Version,
		Draining: !a.serving.Load() || a.sessions.Draining(), Trouble: a.health.Trouble(),
		Sessions: sessions, Max: a.cfg.Sessions.Max, Boots: boots, Slots: a.cfg.Sessions.Boots,
		Since: a.since.UTC(), SeenAt: time.Now().UTC(),
	}
	n.Networks, n.NetworksKept, n.EngineNetworks = a.networks.Counts()
	for _, c := range a.warmPool.Counts() {
		n.Warm, n.WarmWanted = n.Warm+c.Ready, n.WarmWanted+c.Want
	}
	if a.doctor != nil {
		n.Degraded, n.DegradedSince = a.doctor.Rotation.Degraded()
	}
	var busy, waited error
	n.CPULoad, busy = a.load.CPU()
	n.Pressure, waited = a.load.Pressure()
	memory, free := a.load.Memory()
	n.Memory = holdfast.Memory(memory)
	if err := errors.Join(busy, waited, free); err != nil {
		a.log.Debug("this host's load", "err", err)
	}
	a.published.Store(&n)
	a.notify(sdnotify.Alive)
	return n
}

// startGuardian undoes the risky acts of an agent that crashed, and starts the guardian.
// If this agent dies while a kill has paused the engine, the guardian continues the
// engine.
func (a *Agent) startGuardian(p *tasks.Stack) error {
	n, err := guardian.Recover(a.cfg.RunDir)
	if err != nil {
		a.log.Error("undoing what an earlier crash left", "err", err)
	}
	if n > 0 {
		a.log.Warn("undid what an earlier crash left", "plans", n)
	}
	g, err := guardian.Start(append(a.opt.Guardian, a.cfg.RunDir), a.log)
	if err != nil {
		return err
	}
	p.Start("guardian", g.Run)
	a.guardNet(p, g)
	if a.frozen, err = frozen.Open(filepath.Join(a.cfg.RunDir, "frozen")); err != nil {
		return err
	}
	p.Start("the guard of sleeping sessions", func(ctx context.Context) error {
		return process.KeepArmed(ctx, g, process.ThawPlan(a.frozen), "its sleeping sessions stay frozen", a.log)
	})
	if a.opener, err = kill.NewOpener(); err != nil {
		return err
	}
	a.killer = &kill.Killer{Log: a.log}
	a.pausing = &kill.Killer{Log: a.log, Pauser: &guardian.Engine{Guardian: g, Socket: a.socket, Log: a.log}}
	return nil
}
