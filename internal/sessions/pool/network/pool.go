// Package network keeps ready networks for sessions' containers to join, because the
// creation of a network takes an engine most of a container's start (docs/pools.md).
//
// A container of its own holds each network and only waits. Its image has a few
// hundred bytes and is part of this program. A network is given to one session and
// ends with it. It is never reused.
package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
)

// Label is on every container that holds a network, and on their image. Its value is
// the node's id. It never changes, because the next agent finds the containers by it.
const Label = "holdfast.network"

// StoreLabel is on every container that holds a network. Its value is Config.Store.
const StoreLabel = "holdfast.store"

// Bounds.
const (
	MaxSize = 256 // ready networks; a Linux bridge has 1024 ports in total

	sweepEvery  = time.Minute           // interval of the search for containers of the node that the pool does not know
	removeRetry = time.Second           // after a removal that failed
	endPause    = 20 * time.Millisecond // likewise, in End
	maxRemovals = 64                    // that wait for an idle node before their removal
)

// Engine is the part of a container engine that the pool needs.
type Engine interface {
	pool.Engine
	Load(ctx context.Context, archive io.Reader) error
}

// Config is the configuration of a Pool.
type Config struct {
	Node  holdfast.NodeID
	Store string // identity of the node's store: networks of another store are another agent's. "" is none
	Size  int    // networks to keep ready, 0 to MaxSize
}

// Deps are the dependencies of a Pool.
type Deps struct {
	Engine  Engine
	Opener  *kill.Opener
	Deadman pool.Deadman // may be nil
	// Wanted reports whether the node accepts sessions. While it does not, no network
	// is created and ready networks end. Busy reports whether a container is starting;
	// then no network is created. One goroutine calls both often. nil means always for
	// Wanted and never for Busy.
	Wanted, Busy func() bool
	Metrics      *Metrics
	Log          *slog.Logger
}

// Pool keeps networks ready. Any goroutine may call its methods. Adopt is called
// before Run. Take finds a network only while Run is active.
type Pool struct {
	cfg  Config
	deps Deps
	log  *slog.Logger
	with pool.Containers
	wake tasks.Signal // there may be work
	call func(n *network, hostname string) error

	mu       sync.Mutex
	idle     []*network          // oldest first
	used     map[string]*network // by the holder's id
	removals []string            // ids of holders that were killed or never known, to be removed

	// Used by Run's goroutine only.
	swept    time.Time
	idleNode pool.Idle
	making   pool.Backoff // after a network that could not be created
	removeAt time.Time    // no holder is removed before this time, because a removal failed
}

// network is one network, held by a container.
type network struct {
	holder   *kill.Target
	hostname string // at its creation
}

// New returns an empty pool.
func New(cfg Config, deps Deps) *Pool {
	if deps.Wanted == nil {
		deps.Wanted = func() bool { return true }
	}
	p := &Pool{cfg: cfg, deps: deps, log: deps.Log, wake: tasks.NewSignal(), call: (*network).call, used: map[string]*network{}, idleNode: pool.Idle{Busy: deps.Busy},
		with: pool.Containers{Engine: deps.Engine, Opener: deps.Opener, Deadman: deps.Deadman}}
	deps.Metrics.watch(p)
	return p
}

// Take gives a network to a session permanently, and sets the session's host name in
// it. The target is the container that holds the network. It belongs to the pool, and
// Drop ends it. Take returns false if no network is ready. It does not wait.
func (p *Pool) Take(hostname string) (*kill.Target, bool) {
	for {
		n := p.next()
		if n == nil {
			p.deps.Metrics.Claimed(false)
			return nil, false
		}
		if err := p.call(n, hostname); err != nil {
			p.log.Warn("a ready network cannot be given its host name (another one is taken)", "container", n.holder.Name, "err", err)
			p.Drop(n.holder.ID)
			continue
		}
		p.deps.Metrics.Claimed(true)
		return n.holder, true
	}
}

// next takes the oldest network whose holder runs and marks it as used.
func (p *Pool) next() *network {
	defer p.wake.Set()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endDeadLocked()
	if len(p.idle) == 0 {
		return nil
	}
	n := p.idle[0]
	p.idle = slices.Delete(p.idle, 0, 1)
	p.used[n.holder.ID] = n
	return n
}

// endDeadLocked removes ready networks whose holders have died.
func (p *Pool) endDeadLocked() {
	p.idle = slices.DeleteFunc(p.idle, func(n *network) bool {
		if !n.holder.Init().Exited() {
			return false
		}
		p.endLocked(n)
		return true
	})
}

// endLocked kills a network's holder and queues it for removal.
func (p *Pool) endLocked(n *network) {
	// The holder is alone in its pid namespace. It is no error if it is already dead.
	// If the signal fails, the removal kills it.
	_ = n.holder.Init().Signal(unix.SIGKILL)
	n.holder.Close()
	p.removals = append(p.removals, n.holder.ID)
}

// Adopt is Take for the network of a session that an earlier agent started, by its
// holder's id. It returns holdfast.ErrNotFound if the holder does not run or belongs
// to another node. Any other error is the engine's and says nothing about the network.
func (p *Pool) Adopt(ctx context.Context, id string) (*kill.Target, error) {
	c, err := p.deps.Engine.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	if !c.Running() || c.Labels[Label] != string(p.cfg.Node) {
		return nil, fmt.Errorf("network %.12s: its container is %s: %w", id, c.State, holdfast.ErrNotFound)
	}
	holder, err := p.deps.Opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		err = fmt.Errorf("%w: %w", err, holdfast.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	p.hold(holder)
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.used[c.ID]; old != nil { // from an adoption that is repeated
		old.holder.Close()
	}
	p.used[c.ID] = &network{holder: holder}
	return holder, nil
}

// Drop ends a network that was taken or adopted, when its session's container is dead
// or will not be created. It does not wait. An unknown id is no error.
func (p *Pool) Drop(id string) {
	defer p.wake.Set()
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.used[id]
	if n == nil {
		return
	}
	delete(p.used, id)
	p.endLocked(n)
}

// Counts returns how many networks are ready, how many are in use, and how many are
// kept ready while the node is idle.
func (p *Pool) Counts() (ready, used, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle), len(p.used), p.cfg.Size
}

// End kills the holders of all networks, used or not, and has the engine remove them
// until ctx is done. A removal that fails is repeated after the others. End may be
// called again. The next agent finds what is left. End is called after Run, when there
// are no sessions.
func (p *Pool) End(ctx context.Context) error {
	p.mu.Lock()
	all := slices.AppendSeq(p.idle, maps.Values(p.used))
	p.idle, p.used = nil, map[string]*network{}
	p.mu.Unlock()
	p.endAll(ctx, all)
	for {
		left, err := p.removeOne(ctx)
		if left == 0 || err != nil && tasks.Sleep(ctx, endPause) != nil {
			return err
		}
	}
}

// endAll kills the networks' holders and waits until they are dead or ctx is done.
func (p *Pool) endAll(ctx context.Context, all []*network) {
	for _, n := range all {
		_ = n.holder.Init().Signal(unix.SIGKILL) // for the error see endLocked
	}
	for _, n := range all {
		for !n.holder.Init().Exited() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if n.holder.Init().Exited() {
			p.with.Forget(n.holder.ID)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range all {
		p.endLocked(n)
	}
}

// hold passes a holder to the deadman. After an error the deadman still kills the
// holder, because it was announced before its start.
func (p *Pool) hold(holder *kill.Target) {
	if err := p.with.Hold(holder); err != nil {
		p.log.Error("passing a network's holder to the deadman", "container", holder.Name, "err", err)
	}
}
