// Package fleet is the experiment of `holdfast bench fleet`. Several agents run on one
// machine. Each is a process with its own directories, addresses and link to an etcd
// cluster of three processes. Some clients hold connections, others arrive at a steady
// rate. Meanwhile faults and operations hit nodes and etcd. The bench measures their
// effect on clients and sessions. It checks from outside the agents that no session
// ever ran twice.
//
// The nodes share the lab's kernel and container engine. The connections of a node that
// vanishes therefore end, and do not time out. All boots compete for the same CPUs.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/bench"
	"holdfast/bench/rig"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/pki"
	"holdfast/internal/sessions/gateway"
	"holdfast/test/lab"
)

// Roles of the bench's child processes.
const (
	RoleSession = "bench-session" // a session's server on :8080
	RoleBroken  = "bench-broken"  // an agent; the arguments are holdfast, its configuration and its fence
)

const (
	image       = RoleSession + ":latest"
	sessionPort = 8080
)

// Options configures the experiment.
type Options struct {
	// Program is a static build of holdfast. Bench is one of holdfast-bench, which plays
	// the roles of this package; "" is the running program.
	Program  string
	Bench    string
	Agents   int           // 0 is 3, at most 100
	Sessions int           // 0 is 60
	Rate     float64       // arriving clients per second; 0 is 50
	For      time.Duration // duration of the acts; each runs at least once; 0 is 3m
	Every    time.Duration // from the beginning of one act to the next; 0 is 10s
	Chaos    string        // none, Mixed, or acts with commas; "" is Notice
	Seed     uint64        // of the random choices in acts and arrivals
	TTL      time.Duration // of the nodes' leases, whole seconds; 0 is 3s
	ParkTime time.Duration // maximum wait of a client in a gateway; 0 is 30s
	// Dir receives ticks, traces and logs. It is empty or does not exist. "" keeps
	// nothing.
	Dir string
	// BreakFence makes nodes that lost etcd continue after the end of their leases. The
	// checks must detect that.
	BreakFence bool
	// Gather starts all sessions on one node.
	Gather bool
	// Pools lists the pool of each node, with commas: bridge, pooled, warm. The list is
	// repeated for further nodes. "" is Pooled.
	Pools string
	// Runsc is the absolute path of gVisor's runsc. Sessions then run under it, and keep
	// their memory when they move as planned. "" runs sessions without gVisor.
	Runsc string
	// Sleep is the time without data after which a session sleeps: it is frozen, or suspended with
	// Runsc, until the next data. 0: sessions do not sleep.
	Sleep    time.Duration
	Progress io.Writer // receives a line for each act; nil discards them
}

func (o *Options) complete() error {
	o.Bench = cmp.Or(o.Bench, "/proc/self/exe")
	o.Agents, o.Sessions, o.Rate = cmp.Or(o.Agents, 3), cmp.Or(o.Sessions, 60), cmp.Or(o.Rate, 50)
	o.For, o.Every = cmp.Or(o.For, 3*time.Minute), cmp.Or(o.Every, 10*time.Second)
	o.Chaos, o.TTL = cmp.Or(o.Chaos, string(Notice)), cmp.Or(o.TTL, 3*time.Second)
	o.ParkTime = cmp.Or(o.ParkTime, gateway.DefaultConfig().ParkTime)
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o.Check()
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o Options) Check() error {
	rate := o.Rate > 0 && !math.IsInf(o.Rate, 1) // false for NaN
	if o.Agents < 1 || o.Agents > 100 || o.Sessions < 1 || !rate || o.For <= 0 || o.Every <= 0 {
		return errors.New("agents must be 1 to 100, and sessions, rate, duration and interval over 0")
	}
	if err := timing(o.TTL).Validate(); err != nil {
		return err
	}
	for _, word := range o.pools() {
		if _, ok := poolTemplate(word); !ok {
			return holdfast.WithHint(fmt.Errorf("pools: unknown kind %q", word), "a list with commas of: bridge, pooled, warm")
		}
	}
	if o.Runsc != "" {
		if err := rig.CheckRunsc(o.Runsc); err != nil {
			return err
		}
	}
	if o.Sleep < 0 {
		return errors.New("sleep must be over 0")
	}
	_, err := newSchedule(o.Chaos, o.Runsc != "", nil)
	return err
}

// Pooled is a template's default: networks on Holdfast's bridge.
const Pooled = "pooled"

// warmContainers is the number of warm containers of a node. It is small, so that some
// sessions boot.
const warmContainers = 3

// poolTemplate returns the template's line for a word of Options.Pools. ok is false for
// an unknown word.
func poolTemplate(word string) (yaml string, ok bool) {
	switch word {
	case "bridge", Pooled:
		return "network: " + word, true
	case "warm":
		return fmt.Sprintf("warm: %d", warmContainers), true
	}
	return "", false
}

func (o Options) pools() []string { return strings.Split(cmp.Or(o.Pools, Pooled), ",") }

// timing returns the nodes' timing for a lease with that TTL.
func timing(ttl time.Duration) holdfast.Timing {
	return holdfast.Timing{Renew: ttl / 10, Fence: ttl / 2, KillBudget: ttl / 3, TTL: ttl}
}

// Run runs the experiment. It must run inside a lab (lab.Reenter).
func Run(ctx context.Context, o Options) (_ Report, err error) {
	if err := o.complete(); err != nil {
		return Report{}, err
	}
	x := &experiment{o: o}
	defer func() { err = errors.Join(err, x.close()) }()
	if err := x.prepare(ctx); err != nil {
		return Report{}, err
	}
	return x.run(ctx)
}

// experiment is one run.
type experiment struct {
	o        Options
	scratch  string // removed at the end: data of nodes and etcd, certificates
	dir      string // kept with Options.Dir: ticks, traces, logs
	began    time.Duration
	lab      *lab.Engine
	engine   engine.Engine
	etcd     *rig.Cluster
	nodes    []*node
	observer *observer
	probe    *prober
	load     *load
	back     time.Duration // from the end of the last act until all sessions were served
	restored bool          // etcd was restored from a backup
}

func (x *experiment) ticks() string     { return filepath.Join(x.dir, "ticks") }
func (x *experiment) authority() string { return filepath.Join(x.scratch, "certificates", "authority") }

// timing returns the nodes' timing.
func (x *experiment) timing() holdfast.Timing {
	t := timing(x.o.TTL)
	if x.o.BreakFence {
		t.Fence = 100 * t.TTL
	}
	return t
}

func (x *experiment) agentCommand(m *node, config string) []string {
	if x.o.BreakFence {
		return []string{x.o.Bench, RoleBroken, x.o.Program, config, x.timing().Fence.String()}
	}
	return []string{m.program, "agent", "--config", config}
}

// say prints a line of progress.
func (x *experiment) say(format string, args ...any) {
	fmt.Fprintf(x.o.Progress, "%6.1fs  %s\n", (now() - x.began).Seconds(), fmt.Sprintf(format, args...))
}

// makeEmpty creates a directory. An existing one has to be empty.
func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty", dir)
	}
	return err
}

// prepare starts engine, etcd and nodes.
func (x *experiment) prepare(ctx context.Context) (err error) {
	x.began = now()
	args, err := x.runtimes()
	if err != nil {
		return err
	}
	if x.lab, err = lab.StartEngine(ctx, lab.Options{Args: args}); err != nil {
		return err
	}
	x.scratch = x.lab.Scratch()
	if x.dir = x.o.Dir; x.dir == "" {
		x.dir = filepath.Join(x.scratch, "left")
	}
	if x.dir, err = filepath.Abs(x.dir); err != nil { // it is in the configurations of child processes
		return err
	}
	if err := makeEmpty(x.dir); err != nil {
		return err
	}
	if err := os.Mkdir(x.ticks(), 0o700); err != nil {
		return err
	}
	session, err := lab.Binary(image, x.o.Bench, RoleSession)
	if err == nil {
		err = x.lab.Import(ctx, session)
	}
	if err != nil {
		return err
	}
	if x.engine, err = docker.Open(ctx, docker.Config{Host: x.lab.Host()}); err != nil {
		return err
	}
	if x.etcd, err = newEtcd(x.scratch, x.dir, []string{x.o.Bench, rig.RoleMember}); err != nil {
		return err
	}
	if err := x.etcd.Start(ctx); err != nil {
		return err
	}
	if x.observer, err = newObserver(ctx, x.etcd.Endpoints()); err != nil {
		return err
	}
	x.observer.start()
	x.say("etcd serves")
	return x.startNodes(ctx)
}

func (x *experiment) startNodes(ctx context.Context) error {
	if _, err := pki.InitCA(x.authority(), time.Now()); err != nil {
		return err
	}
	for n := range x.o.Agents {
		m, err := x.newNode(n + 1)
		if err == nil {
			err = m.boot(ctx)
		}
		if err != nil {
			return err
		}
	}
	x.say("%d agents serve", x.o.Agents)
	return x.whole(ctx)
}

// whole waits until every node has published its record.
func (x *experiment) whole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	for {
		list, err := x.observer.store.Nodes(ctx)
		if err == nil && len(list) == len(x.nodes) {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("%d of %d nodes are in etcd: %w", len(list), len(x.nodes), cmp.Or(err, ctx.Err()))
		}
	}
}

// run runs clients and acts, ends everything in order, and checks the recordings.
func (x *experiment) run(ctx context.Context) (Report, error) {
	var keys []holdfast.SessionKey
	for i := range x.o.Sessions {
		keys = append(keys, holdfast.SessionKey(fmt.Sprintf("s-%d", i+1)))
	}
	l := newLoad(x.nodes, keys, x.o.ParkTime+beyondPark)
	x.load = l
	life, end := context.WithCancel(ctx)
	defer l.wait()
	defer end()
	if err := x.gathered(ctx, func() error { return l.hold(life) }); err != nil {
		return Report{}, errors.Join(err, x.faults())
	}
	x.say("every session has a client")
	x.probe = newProber(x.engine, x.ticks())
	if err := x.engineAlone(ctx, x.probe); err != nil {
		return Report{}, err
	}
	began := now()
	events, unfinished := x.happen(ctx, life, l)
	ended := now()
	end()
	l.wait()
	x.say("ending")
	stopErr := x.stopNodes()
	if failed := errors.Join(unfinished, stopErr); failed != nil { // what was seen until then is judged
		verdict, _, err := x.judge(context.WithoutCancel(ctx))
		if err == nil {
			x.say("until the failure: %v", verdict)
		}
		return Report{}, errors.Join(failed, err)
	}
	verdict, changes, err := x.judge(ctx)
	if err != nil {
		return Report{}, err
	}
	info, err := x.engine.Info(ctx)
	if err != nil {
		return Report{}, err
	}
	machine := bench.EngineMachine(info)
	m := measured{began: began, ended: ended, load: l, events: events, changes: changes, engine: x.probe.took, bursts: x.probe.bursts}
	return x.report(machine, m, verdict), nil
}

// engineAlone measures how fast the engine starts as many containers as a node
// has sessions, while all sessions run and nothing else happens.
func (x *experiment) engineAlone(ctx context.Context, p *prober) (err error) {
	share := (x.o.Sessions + x.o.Agents - 1) / x.o.Agents
	slots := config.Default().Sessions.Boots * max(x.o.Agents-1, 1)
	p.bursts, err = p.burst(ctx, share, slots)
	x.say("the engine alone has started %d containers", share)
	return err
}

// gathered runs f while all nodes but one are cordoned, if Options.Gather is set.
func (x *experiment) gathered(ctx context.Context, f func() error) error {
	if !x.o.Gather {
		return f()
	}
	for _, m := range x.nodes[1:] {
		if err := m.api.Cordon(ctx, ""); err != nil {
			return err
		}
	}
	err := f()
	for _, m := range x.nodes[1:] {
		err = errors.Join(err, m.api.Uncordon(ctx, ""))
	}
	return err
}

// happen runs clients, prober and acts side by side for the configured time. Every act
// is completed, and clients that are connecting at the end may finish.
func (x *experiment) happen(ctx, life context.Context, l *load) ([]event, error) {
	random := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(x.o.Seed, stream)) }
	s, err := newSchedule(x.o.Chaos, x.o.Runsc != "", random(1))
	if err != nil {
		return nil, err
	}
	until := now() + x.o.For
	beside, rest := context.WithCancel(ctx)
	defer rest()
	var work sync.WaitGroup
	work.Go(func() { l.arrive(beside, life, x.o.Rate, random(2)) })
	work.Go(func() { x.probe.run(beside) })
	events, err := x.chaos(ctx, s, x.o.Every, until)
	rest()
	work.Wait()
	if err = cmp.Or(err, x.probe.err, ctx.Err()); err == nil {
		l.settle(ctx)
	}
	return events, err
}

// newEtcd creates a cluster whose members have addresses of their own.
func newEtcd(dir, logs string, role []string) (*rig.Cluster, error) {
	return rig.NewCluster(rig.ClusterOptions{Members: 3, Dir: dir, Logs: logs, Role: role, Nice: rig.Nice, Address: func(n int) (client, peer string) {
		return fmt.Sprintf("127.0.2.%d:2379", n), fmt.Sprintf("127.0.2.%d:2380", n)
	}})
}

// faults are the processes that ended and were not asked to.
func (x *experiment) faults() error {
	var errs []error
	for _, m := range x.nodes {
		if m.agent != nil {
			errs = append(errs, m.agent.Fault())
		}
	}
	for _, m := range x.etcd.Members {
		if m.Process != nil {
			errs = append(errs, m.Fault())
		}
	}
	return errors.Join(errs...)
}

// stopNodes ends the agents as service managers do, all at once. Each drains.
func (x *experiment) stopNodes() error {
	errs := make([]error, len(x.nodes))
	var work sync.WaitGroup
	for i, m := range x.nodes {
		m.live.Store(false)
		work.Go(func() { errs[i] = m.agent.Terminate(rig.Patience) })
	}
	work.Wait()
	return errors.Join(errs...)
}

// close ends what runs and removes what is not to be kept.
func (x *experiment) close() error {
	var errs []error
	for _, m := range slices.Backward(x.nodes) {
		if m.agent != nil {
			m.agent.Kill()
		}
		if helpers, err := mentioning(m.dir + "/"); err == nil {
			signalEach(helpers, unix.SIGKILL)
		}
		if m.api != nil {
			m.api.Close()
		}
		errs = append(errs, m.link.close(), m.unmountData())
	}
	if x.observer != nil {
		errs = append(errs, x.observer.close())
	}
	if x.etcd != nil {
		x.etcd.Stop()
	}
	if x.engine != nil {
		errs = append(errs, x.engine.Close())
	}
	if x.lab != nil {
		errs = append(errs, x.lab.Stop())
	}
	return errors.Join(errs...)
}
