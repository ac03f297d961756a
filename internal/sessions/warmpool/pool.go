// Package warmpool keeps containers that run, answer and are frozen before anybody
// asks for a session: a claim thaws one and tells it who it is (docs/pools.md). Each
// is of one session at most.
package warmpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/quiet"
)

// Label is on every container of a warm pool, also once a session has it. Its value
// is the name of its directory. It never changes.
const Label = "holdfast.warm"

// Dir is where a container finds who it is.
const Dir = "/run/holdfast"

// MaxSize is how many warm containers a template may have.
const MaxSize = 256

// Bounds.
const (
	lookEvery  = 5 * time.Second // for what has died, for pressure, for demand
	imageEvery = time.Minute     // for another image under the template's name, and what is left of directories
	quietPoll  = 20 * time.Millisecond

	engineTimeout = 60 * time.Second
	killTimeout   = 10 * time.Second
	freezeTimeout = 2 * time.Second
	firstPause    = time.Second // after a container that could not be made, doubled up to
	longestPause  = 5 * time.Minute
)

// Engine is what is needed of a container engine.
type Engine interface {
	ImageID(ctx context.Context, ref string) (string, error)
	Create(ctx context.Context, s engine.Spec) (string, error)
	Start(ctx context.Context, id string) error
	Inspect(ctx context.Context, id string) (engine.Container, error)
	List(ctx context.Context, labels map[string]string) ([]engine.Container, error)
	Remove(ctx context.Context, id string) error
}

// Deadman is told of containers before they run, so that it can kill what this
// process cannot any more, and when they are dead.
type Deadman interface {
	Expect(containerID string) error
	Hold(t *kill.Target) error
	Forget(containerIDs ...string)
}

// Template is what a pool makes containers of. Its functions may be called from any
// goroutine.
type Template struct {
	Name  string
	Image string
	Most  int // containers, 1 to MaxSize
	// Spec is a container of a name, with a directory of this host at Dir and
	// the value of Label.
	Spec func(name, dir, label string) engine.Spec
	// Await returns the address of a container's server once it answers.
	Await func(ctx context.Context, c engine.Container, alive func() bool) (address string, err error)
}

// Pressure is how short the host is of CPU or memory.
type Pressure int

// The pressures.
const (
	NoPressure Pressure = iota
	Tight               // nothing more is made
	Short               // and what waits is ended, one after the other
)

// Config is what a Pool needs to know.
type Config struct {
	Node      holdfast.NodeID
	Templates []Template
	Dir       string // of this host, for what containers are told; only root may enter it
}

// Deps is what a Pool works with.
type Deps struct {
	Engine  Engine
	Opener  *kill.Opener
	Killer  *kill.Killer
	Deadman Deadman // nil: none
	// Fetch has the image of a template on this host.
	Fetch func(ctx context.Context, template string) error
	// Wanted reports whether sessions may come: while they may not, what waits
	// is ended. Busy reports whether a container is being started: then nothing
	// is made. They are called often, from one goroutine; nil is always, never
	// and none.
	Wanted, Busy func() bool
	Pressure     func() Pressure
	Metrics      *Metrics
	Log          *slog.Logger
}

// Pool keeps containers warm. Its methods may be called from any goroutine; Take
// finds something only while Run runs.
type Pool struct {
	cfg  Config
	deps Deps
	log  *slog.Logger
	poke chan struct{}

	mu    sync.Mutex
	kinds []*kind
	open  bool // Run runs

	// Of Run's goroutine only.
	quiet  quiet.Quiet
	looked time.Time
	images time.Time
}

// kind is a template and its containers.
type kind struct {
	Template
	// Guarded by Pool.mu.
	idle   []*Container // the oldest first
	demand demand
	// Of Run's goroutine only.
	makeAt time.Time // nothing is made before, because it could not be
	pause  time.Duration
}

// New returns a pool that has nothing yet.
func New(cfg Config, deps Deps) *Pool {
	if deps.Wanted == nil {
		deps.Wanted = func() bool { return true }
	}
	if deps.Pressure == nil {
		deps.Pressure = func() Pressure { return NoPressure }
	}
	p := &Pool{cfg: cfg, deps: deps, log: deps.Log, poke: make(chan struct{}, 1), quiet: quiet.Quiet{Busy: deps.Busy}}
	for _, t := range cfg.Templates {
		p.kinds = append(p.kinds, &kind{Template: t, demand: demand{since: time.Now()}})
	}
	deps.Metrics.watch(p)
	return p
}

// Ready reports whether Take would find a container of the template.
func (p *Pool) Ready(template string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kind(template)
	return k != nil && p.open && len(k.idle) > 0
}

// Take gives a container to a session, for good: it and its target are the caller's
// from then on. nil where there is none; it does not wait. Each call counts as
// demand for the template.
func (p *Pool) Take(template string) *Container {
	defer p.wake()
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kind(template)
	if k == nil || !p.open {
		return nil
	}
	k.demand.claim(time.Now())
	// The dead are left to Run. So is another image: what is here serves as well as
	// it did a moment ago.
	i := slices.IndexFunc(k.idle, func(c *Container) bool { return !c.dead() })
	p.deps.Metrics.claimed(template, i >= 0)
	if i < 0 {
		return nil
	}
	c := k.idle[i]
	k.idle = slices.Delete(k.idle, i, i+1)
	return c
}

// dead reports whether the container has ended, or will when it is thawed: on cgroup
// v1 what is frozen does not die of a SIGKILL. Run ends such a one.
func (c *Container) dead() bool {
	if c.target.Init().Exited() {
		return true
	}
	killed, err := proc.Host.Killed(c.target.Pid())
	if killed || err != nil { // it has gone just now
		c.image = ""
		return true
	}
	return false
}

// kind is a template's, nil where it has none. p.mu is held.
func (p *Pool) kind(template string) *kind {
	for _, k := range p.kinds {
		if k.Name == template {
			return k
		}
	}
	return nil
}

// Count is how many containers of a template are warm, and are wanted to be.
type Count struct {
	Template          string
	Ready, Want, Most int
}

// Counts are those of all templates, in their order.
func (p *Pool) Counts() []Count {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Count
	for _, k := range p.kinds {
		out = append(out, Count{Template: k.Name, Ready: len(k.idle), Want: k.demand.want(k.Most, time.Now()), Most: k.Most})
	}
	return out
}

func (p *Pool) wake() {
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

// End kills what waits and has the engine remove it, until ctx is done: what is left
// then is dead, or the next agent finds it. It comes after Run.
func (p *Pool) End(ctx context.Context) error {
	p.mu.Lock()
	var all []*Container
	for _, k := range p.kinds {
		all = append(all, k.idle...)
		k.idle = nil
	}
	p.mu.Unlock()
	return p.endAll(ctx, all)
}

// endAll sees containers dead, whether frozen or not, and removes them.
func (p *Pool) endAll(ctx context.Context, all []*Container) error {
	if len(all) == 0 {
		return nil
	}
	targets := make([]*kill.Target, len(all))
	for i, c := range all {
		c.talk.close()
		targets[i] = c.target
	}
	killing, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	report := p.deps.Killer.Kill(killing, targets)
	var errs []error
	for _, l := range report.Left {
		errs = append(errs, fmt.Errorf("container %s is not seen dead: %s", l.Name, l.Reason))
	}
	if p.deps.Deadman != nil && len(report.Dead) > 0 {
		p.deps.Deadman.Forget(report.Dead...)
	}
	for _, c := range all {
		c.target.Close()
		if err := p.deps.Engine.Remove(ctx, c.id); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(p.cfg.Dir, c.label)))
	}
	return errors.Join(errs...)
}
