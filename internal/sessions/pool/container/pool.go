// Package container keeps containers that are started, answer and are frozen before a
// session needs them. A claim thaws one and sends it its identity (docs/pools.md). For
// templates whose sessions keep their memory, it keeps sandboxes instead, which run nothing
// until a session's memory is restored in one. Each container serves one session at most.
package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
)

// Label is on every container of a warm pool, also after a session has claimed it. Its
// value is the name of its directory. It never changes.
const Label = "holdfast.warm"

// Dir is where a container finds its identity.
const Dir = "/run/holdfast"

// MaxSize is the highest number of warm containers of a template.
const MaxSize = 256

// Bounds.
const (
	imageEvery = time.Minute // interval of the checks for a changed image and for unused directories

	killTimeout   = 10 * time.Second
	freezeTimeout = 2 * time.Second
)

// Engine is the part of a container engine that the pool needs.
type Engine interface {
	pool.Engine
	ImageID(ctx context.Context, ref string) (string, error)
}

// Template describes the containers of a pool. Any goroutine may call its functions.
type Template struct {
	Name  string
	Image string
	Most  int // containers, 1 to MaxSize
	// Spec returns the spec of a container with this name, a directory of this host
	// mounted at Dir, and this value of Label.
	Spec  func(name, dir, label string) engine.Spec
	Joins bool // it joins a network of Deps.Networks, if there is one
	// Sandbox means that a container waits for the memory of a session: it runs nothing.
	Sandbox bool
	// Await returns the address of a container's server once it answers, and for a Sandbox
	// the address that it will have.
	Await func(ctx context.Context, c engine.Container, alive func() bool) (address string, err error)
}

// Pressure is how short of memory the host is.
type Pressure int

// The levels of pressure.
const (
	NoPressure Pressure = iota
	Tight               // no container is created
	Short               // no container is created, and waiting ones are ended one after the other
)

// Config is the configuration of a Pool.
type Config struct {
	Templates []Template
	Dir       string // directory of this host for the identities; only root may enter it
	// SandboxDir is the same for templates with Sandbox. A claim moves the directory of its
	// container to another place on this file system.
	SandboxDir string
}

// Deps are the dependencies of a Pool.
type Deps struct {
	Engine  Engine
	Opener  *kill.Opener
	Killer  *kill.Killer
	Deadman pool.Deadman // may be nil
	// Networks are for templates that join one. It may be nil. A claimed container's network
	// is its session's.
	Networks pool.Networks
	// Hold makes the engine's start of a created container leave its sandbox waiting. It is
	// for templates with Sandbox, and may be nil if there are none.
	Hold func(id string) error
	// Fetch ensures that the image of a template is on this host.
	Fetch func(ctx context.Context, template string) error
	// Wanted reports whether the node accepts sessions. While it does not, waiting
	// containers are ended. Busy reports whether a container is starting; then none is
	// created. One goroutine calls these functions often. nil means always for Wanted,
	// never for Busy and NoPressure for Pressure.
	Wanted, Busy func() bool
	Pressure     func() Pressure
	Metrics      *Metrics
	Log          *slog.Logger
}

// Pool keeps containers warm. Any goroutine may call its methods. Take finds a
// container only while Run is active.
type Pool struct {
	cfg  Config
	deps Deps
	log  *slog.Logger
	wake tasks.Signal
	with pool.Containers

	mu    sync.Mutex
	kinds []*kind
	open  bool // Run is active

	// Used by Run's goroutine only.
	idleNode pool.Idle
	looked   time.Time
	images   time.Time
	failed   []*Container // that did not come up and could not be removed
	retried  time.Time    // when their removal was last tried
}

// kind is a template and its containers.
type kind struct {
	Template
	// Guarded by Pool.mu.
	idle   []*Container // oldest first
	demand demand
	// Used by Run's goroutine only.
	making pool.Backoff // after a container that could not be created
}

// New returns an empty pool.
func New(cfg Config, deps Deps) *Pool {
	if deps.Wanted == nil {
		deps.Wanted = func() bool { return true }
	}
	if deps.Pressure == nil {
		deps.Pressure = func() Pressure { return NoPressure }
	}
	p := &Pool{cfg: cfg, deps: deps, log: deps.Log, wake: tasks.NewSignal(), idleNode: pool.Idle{Busy: deps.Busy},
		with: pool.Containers{Engine: deps.Engine, Opener: deps.Opener, Deadman: deps.Deadman}}
	for _, t := range cfg.Templates {
		p.kinds = append(p.kinds, &kind{Template: t, demand: demand{since: time.Now()}})
	}
	deps.Metrics.watch(p)
	return p
}

// Ready reports whether Take would return a container of the template.
func (p *Pool) Ready(template string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kind(template)
	return k != nil && p.open && len(k.idle) > 0
}

// Take gives a container to a session permanently: the caller owns the container and
// its target. It returns nil if there is none. It does not wait. Each call counts as
// demand for the template.
func (p *Pool) Take(template string) *Container {
	defer p.wake.Set()
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kind(template)
	if k == nil || !p.open {
		return nil
	}
	k.demand.claim(time.Now())
	// Run ends dead containers, and containers of a replaced image. The second kind
	// still serves as well as before.
	i := slices.IndexFunc(k.idle, func(c *Container) bool { return !c.dead() })
	p.deps.Metrics.Claimed(i >= 0, template)
	if i < 0 {
		return nil
	}
	c := k.idle[i]
	k.idle = slices.Delete(k.idle, i, i+1)
	return c
}

// dead reports whether the container has exited, or will when it is thawed: on cgroup
// v1 a frozen process does not die of SIGKILL. Run ends such a container.
func (c *Container) dead() bool {
	if c.target.Init().Exited() {
		return true
	}
	killed, err := proc.Host.Killed(c.target.Pid())
	if killed || err != nil { // it has just exited
		c.image = ""
		return true
	}
	return false
}

// kind returns the kind of a template, or nil if the template has none. The caller
// holds p.mu.
func (p *Pool) kind(template string) *kind {
	for _, k := range p.kinds {
		if k.Name == template {
			return k
		}
	}
	return nil
}

// Count is the number of warm containers of a template, and the number that the pool
// aims for.
type Count struct {
	Ready, Want int
}

// Counts returns the counts of all templates in their order.
func (p *Pool) Counts() []Count {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Count
	for _, k := range p.kinds {
		out = append(out, Count{Ready: len(k.idle), Want: k.demand.want(k.Most, time.Now())})
	}
	return out
}

// End kills the waiting containers and has the engine remove them until ctx is done.
// What is left then is dead, or the next agent finds it. End is called after Run.
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

// endAll kills containers, frozen or not, sees them dead and removes them.
func (p *Pool) endAll(ctx context.Context, all []*Container) error {
	if len(all) == 0 {
		return nil
	}
	targets := make([]*kill.Target, len(all))
	for i, c := range all {
		c.socket.close()
		targets[i] = c.target
	}
	killing, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	report := p.deps.Killer.Kill(killing, targets)
	var errs []error
	for _, l := range report.Left {
		errs = append(errs, fmt.Errorf("container %s is not seen dead: %s", l.Name, l.Reason))
	}
	p.with.Forget(report.Dead...)
	for _, c := range all {
		c.target.Close()
		p.drop(c) // its holder has been free since its start
		if err := p.deps.Engine.Remove(ctx, c.id); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
