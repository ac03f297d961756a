// Package netpool keeps networks ready that sessions' containers join, because an
// engine needs most of a container's start for its network (docs/pools.md).
//
// A network is held by a container of its own that does nothing but wait, made
// from an image of a few hundred bytes that this program brings along. It is given
// to one session, and ends with it: nobody ever gets the network of another.
package netpool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
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
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/quiet"
)

// Label is on every container that holds a network, and on their image. Its value
// is the node's id. It never changes: it is how the next agent finds them.
const Label = "holdfast.network"

// Bounds.
const (
	MaxSize = 256 // ready networks; a Linux bridge has 1024 ports for all

	lookEvery  = 5 * time.Second // for what has died by itself
	sweepEvery = time.Minute     // for containers of the node that no pool knows
	quietPoll  = 20 * time.Millisecond
	maxDoomed  = 64 // that wait to be removed until it is quiet; more do not

	engineTimeout = 60 * time.Second
	firstPause    = time.Second // after a network that could not be made, doubled up to
	longestPause  = 5 * time.Minute
)

// Engine is what is needed of a container engine.
type Engine interface {
	Load(ctx context.Context, archive io.Reader) error
	Create(ctx context.Context, s engine.Spec) (string, error)
	Start(ctx context.Context, id string) error
	Inspect(ctx context.Context, id string) (engine.Container, error)
	List(ctx context.Context, labels map[string]string) ([]engine.Container, error)
	Remove(ctx context.Context, id string) error
}

// Deadman is told of what holds a network before that runs, so that it can end it when
// no agent does any more, and when it is dead.
type Deadman interface {
	Expect(containerID string) error
	Hold(t *kill.Target) error
	Forget(containerIDs ...string)
}

// Config is what a Pool needs to know.
type Config struct {
	Node holdfast.NodeID
	Size int // networks kept ready, 0 to MaxSize
}

// Deps is what a Pool works with.
type Deps struct {
	Engine  Engine
	Opener  *kill.Opener
	Deadman Deadman // nil: none
	// Wanted reports whether sessions may come; while they may not nothing is
	// made, and what is ready ends. Busy reports whether a container is being
	// started: then nothing is made. Both are called often, from one
	// goroutine; nil is always and never.
	Wanted, Busy func() bool
	Metrics      *Metrics
	Log          *slog.Logger
}

// Pool keeps networks ready. Its methods may be called from any goroutine. Adopt
// comes before Run; Take finds something only while Run does.
type Pool struct {
	cfg  Config
	deps Deps
	log  *slog.Logger
	poke chan struct{} // there may be something to do
	call func(n *network, hostname string) error

	mu     sync.Mutex
	idle   []*network          // the oldest first
	used   map[string]*network // by the holder's id
	doomed []string            // holders that were killed or never known, to be removed

	// Of Run's goroutine only.
	swept    time.Time
	quiet    quiet.Quiet
	makeAt   time.Time     // no network is made before, because one could not be
	pause    time.Duration // that led there
	removeAt time.Time     // the same of removals
}

// network is one network, held by a container.
type network struct {
	holder   *kill.Target
	hostname string // that it was made with
	address  string
}

// New returns a pool that has nothing yet.
func New(cfg Config, deps Deps) *Pool {
	if deps.Wanted == nil {
		deps.Wanted = func() bool { return true }
	}
	p := &Pool{cfg: cfg, deps: deps, log: deps.Log, poke: make(chan struct{}, 1), call: (*network).call, used: map[string]*network{}, quiet: quiet.Quiet{Busy: deps.Busy}}
	deps.Metrics.watch(p)
	return p
}

// Take gives a network to a session, for good, and calls it by the session's host
// name. The target is the container that holds it, and belongs to the pool: Drop
// ends it. false where none is ready; it does not wait.
func (p *Pool) Take(hostname string) (*kill.Target, bool) {
	for {
		n := p.next()
		if n == nil {
			p.deps.Metrics.claimed(false)
			return nil, false
		}
		if err := p.call(n, hostname); err != nil {
			p.log.Warn("a ready network cannot be named (another is taken)", "container", n.holder.Name, "err", err)
			p.Drop(n.holder.ID)
			continue
		}
		p.deps.Metrics.claimed(true)
		return n.holder, true
	}
}

// next takes the oldest network whose holder lives; from then on it is used.
func (p *Pool) next() *network {
	defer p.wake()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buryLocked()
	if len(p.idle) == 0 {
		return nil
	}
	n := p.idle[0]
	p.idle = slices.Delete(p.idle, 0, 1)
	p.used[n.holder.ID] = n
	return n
}

// buryLocked takes out ready networks whose holders have died.
func (p *Pool) buryLocked() {
	p.idle = slices.DeleteFunc(p.idle, func(n *network) bool {
		if !n.holder.Init().Exited() {
			return false
		}
		p.doomLocked(n)
		return true
	})
}

// doomLocked kills a network's holder and has it removed.
func (p *Pool) doomLocked(n *network) {
	// It is alone in its pid namespace; one that is dead already is no error,
	// and one that cannot be killed is killed by its removal.
	_ = n.holder.Init().Signal(unix.SIGKILL)
	n.holder.Close()
	p.doomed = append(p.doomed, n.holder.ID)
}

// Adopt is Take for a network that a running session of an earlier agent has, by
// its holder's id. holdfast.ErrNotFound where the holder does not run, or is not
// this node's; else the engine's error, which tells nothing of the network.
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
	if old := p.used[c.ID]; old != nil { // an adoption that was begun again
		old.holder.Close()
	}
	p.used[c.ID] = &network{holder: holder}
	return holder, nil
}

// Drop ends a network that was taken or adopted, once its session's container is
// dead or will not be. It does not wait. Another id is no error.
func (p *Pool) Drop(id string) {
	defer p.wake()
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.used[id]
	if n == nil {
		return
	}
	delete(p.used, id)
	p.doomLocked(n)
}

// Counts says how many networks are ready, how many are in use, and how many are
// kept ready when all is quiet.
func (p *Pool) Counts() (ready, used, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle), len(p.used), p.cfg.Size
}

func (p *Pool) wake() {
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

// End kills what holds a network, used or not, and has the engine remove it, until
// ctx is done: what is left then, the next agent finds. It comes after Run, when no
// session is left.
func (p *Pool) End(ctx context.Context) error {
	p.mu.Lock()
	all := slices.AppendSeq(p.idle, maps.Values(p.used))
	p.idle, p.used = nil, map[string]*network{}
	p.mu.Unlock()
	p.endAll(ctx, all)
	for {
		left, err := p.removeOne(ctx)
		if err != nil || left == 0 {
			return err
		}
	}
}

// endAll kills the networks' holders and sees them dead, until ctx is done.
func (p *Pool) endAll(ctx context.Context, all []*network) {
	for _, n := range all {
		_ = n.holder.Init().Signal(unix.SIGKILL) // as of doomLocked
	}
	for _, n := range all {
		for !n.holder.Init().Exited() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if n.holder.Init().Exited() {
			p.forget(n.holder.ID)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range all {
		p.doomLocked(n)
	}
}

// newName is a new container's.
func newName() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails
	return "holdfast-network-" + hex.EncodeToString(b)
}
