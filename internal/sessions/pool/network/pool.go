// Package network gives containers on Docker networks that Holdfast makes, without a start
// of a program of the engine's for each (docs/adr/switched-networks.md).
//
// Holders are containers whose only process enters the network namespace that it is sent.
// A container joins "the network of the holder": the engine resolves that at the
// container's start to the namespace in which the holder is then. Afterwards only the
// container's processes keep the namespace, and it ends with them. A network is never
// reused.
package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/netns"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
)

// Label is on every holder, and on their image. Its value is the node's id. It never
// changes, because the next agent finds the containers by it.
const Label = "holdfast.holder"

// MaxReady is the highest number of ready networks. A Linux bridge has 1024 ports.
const MaxReady = 256

// StoreLabel is on every holder. Its value is Config.Store.
const StoreLabel = "holdfast.store"

// Engine is the part of a container engine that the pool needs.
type Engine interface {
	pool.Engine
	Load(ctx context.Context, archive io.Reader) error
}

// Config is the configuration of a Pool.
type Config struct {
	Node    holdfast.NodeID
	Store   string // identity of the node's store: holders of another store are another agent's. "" is none
	Holders int    // at most, as many as boots that run in parallel; 0: the pool gives no networks, and keeps those in use
	Ready   int    // networks to keep ready, 0 to MaxReady
	// Dir has files of holders and networks. Sessions write to some of them, so it is on a
	// disk whose space they share, as their images.
	Dir string
}

// Deps are the dependencies of a Pool.
type Deps struct {
	Engine Engine
	Opener *kill.Opener
	Net    *vethnet.Net
	// Wanted reports whether the node accepts sessions. While it does not, no network is
	// created and ready networks end. Busy reports whether a container is starting; then
	// no network is created ahead. One goroutine calls both often. nil means always for
	// Wanted and never for Busy.
	Wanted, Busy func() bool
	Metrics      *Metrics
	Log          *slog.Logger
}

// Pool has holders and ready networks. Any goroutine may call its methods. Adopt is called
// before Run. Take finds a network only while Run is active.
type Pool struct {
	cfg  Config
	deps Deps
	log  *slog.Logger
	with pool.Containers
	wake tasks.Signal // there may be work

	mu       sync.Mutex
	closed   bool            // Run is not active
	holders  map[string]bool // ids, free or not
	wanted   int             // holders, at most Config.Holders
	free     []*hold
	ready    []*vethnet.Namespace
	used     map[netip.Addr]*network
	removals []string  // ids of holders that have ended or were never known
	dropped  []dropped // networks whose sessions have ended

	problem error // of the last holder or network that could not be made; nil after a success

	// Used by Run's goroutine only.
	swept           time.Time
	idleNode        pool.Idle
	making, filling pool.Backoff // of holders, of ready networks
	removeAt        time.Time    // no holder is removed before this time, because a removal failed
	failing         sync.Once
}

// network is a network of a session.
type network struct {
	index int      // of its device
	hold  *hold    // until its container has joined; nil afterwards, and for an adopted one
	ns    *os.File // likewise
}

// dropped is a network whose session has ended.
type dropped struct {
	addr  netip.Addr
	index int // of its device
	at    time.Time
}

// New returns an empty pool.
func New(cfg Config, deps Deps) *Pool {
	if deps.Wanted == nil {
		deps.Wanted = func() bool { return true }
	}
	p := &Pool{cfg: cfg, deps: deps, wanted: min(cfg.Holders, FirstHolders()), log: deps.Log, wake: tasks.NewSignal(), closed: true, used: map[netip.Addr]*network{}, holders: map[string]bool{},
		idleNode: pool.Idle{Busy: deps.Busy}, with: pool.Containers{Engine: deps.Engine, Opener: deps.Opener}}
	deps.Metrics.watch(p)
	return p
}

// FirstHolders is how many holders a pool begins with, if Config.Holders allows it. More than
// one for each CPU do not make a burst of boots faster. A holder costs as much as a boot, and 4 MB.
func FirstHolders() int { return max(2, runtime.NumCPU()) }

const (
	// takeWait is how long Take waits for a holder: for the first ones of an agent, or of an
	// engine that has started again, and in a burst of boots.
	takeWait  = 3 * time.Second
	takePause = 5 * time.Millisecond // between two looks
	// addAfter is how long Take waits before the pool makes a holder more. Boots that the
	// engine does not finish keep theirs.
	addAfter = time.Second
)

// Take gives a network to a session permanently. The holder is in it, and stays there
// until Started or Drop. It waits for a holder while one is expected soon, until ctx is done.
// It returns false if no holder is free or no network can be made.
func (p *Pool) Take(ctx context.Context, hostname string) (pool.Joined, bool) {
	j, err := p.take(hostname)
	for begun := time.Now(); errors.Is(err, errNone) && time.Since(begun) < takeWait && p.expect(time.Since(begun) > addAfter) && tasks.Sleep(ctx, takePause) == nil; {
		j, err = p.take(hostname)
	}
	if err != nil && !errors.Is(err, errNone) {
		p.failing.Do(func() {
			p.log.Warn("no network can be made for a session: the engine creates sessions' networks during their boot", "err", err)
		})
	}
	if p.cfg.Holders > 0 {
		p.deps.Metrics.Claimed(err == nil)
	}
	return j, err == nil
}

// Settled reports whether a holder is free, or none is to be expected soon: there are as many
// as there will be, or the last attempt to make one has failed.
func (p *Pool) Settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endDeadLocked()
	if len(p.free) == 0 {
		p.wake.Set()
	}
	return p.closed || len(p.free) > 0 || !p.mayGrowLocked()
}

// mayGrowLocked reports whether there may be more holders, and one can be made.
func (p *Pool) mayGrowLocked() bool { return len(p.holders) < p.cfg.Holders && p.problem == nil }

// expect reports whether a holder will be free soon. With more, the pool makes another one if
// it may.
func (p *Pool) expect(more bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return false
	case len(p.free) > 0:
		return true
	case !p.mayGrowLocked():
		return false
	}
	if more {
		p.wanted = max(p.wanted, len(p.holders)+1)
	}
	p.wake.Set()
	return true
}

// errNone means that no holder is free.
var errNone = errors.New("no holder of networks is free")

func (p *Pool) take(hostname string) (pool.Joined, error) {
	defer p.wake.Set()
	ns, err := p.namespace()
	if err != nil {
		return pool.Joined{}, err
	}
	for {
		h := p.freeHolder()
		if h == nil {
			p.giveBack(ns)
			return pool.Joined{}, errNone
		}
		mounts, err := p.writeFiles(h, ns.Addr, hostname)
		if err != nil {
			p.giveBack(ns)
			p.release(h)
			return pool.Joined{}, err
		}
		if err := h.conn.Enter(ns.File); err != nil {
			p.log.Warn("a holder does not take a network (another one is used)", "container", h.target.Name, "err", err)
			p.endHolder(h)
			continue
		}
		if !p.use(ns, h) {
			return pool.Joined{}, errNone
		}
		return pool.Joined{Addr: ns.Addr, Holder: h.target, Mounts: mounts}, nil
	}
}

// use records a network that a session uses. It returns false, and ends both, if Run has
// ended.
func (p *Pool) use(ns *vethnet.Namespace, h *hold) bool {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.used[ns.Addr] = &network{index: ns.Index, hold: h, ns: ns.File}
	}
	p.mu.Unlock()
	if closed {
		ns.File.Close()
		p.endHolder(h)
	}
	return !closed
}

// namespace returns the oldest ready network, or makes one. It makes none if no holder is
// free.
func (p *Pool) namespace() (*vethnet.Namespace, error) {
	p.mu.Lock()
	if len(p.free) == 0 {
		p.mu.Unlock()
		return nil, errNone
	}
	if len(p.ready) > 0 {
		ns := p.ready[0]
		p.ready = slices.Delete(p.ready, 0, 1)
		p.mu.Unlock()
		return ns, nil
	}
	p.mu.Unlock()
	return p.makeNetwork()
}

func (p *Pool) makeNetwork() (*vethnet.Namespace, error) {
	begun := time.Now()
	ns, err := p.deps.Net.NewNamespace()
	p.deps.Metrics.Made(time.Since(begun), err)
	if errors.Is(err, vethnet.ErrNoNAT) {
		err = holdfast.WithHint(err, "engine.masquerade: false makes networks without one, and leaves the firewall alone")
	}
	p.setProblem(err)
	return ns, err
}

func (p *Pool) setProblem(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problem = err
}

// Problem returns why containers get networks of the engine's: the error of the last
// attempt to make a holder or a network. It is nil if that has succeeded.
func (p *Pool) Problem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem
}

// giveBack keeps a network that no container has joined.
func (p *Pool) giveBack(ns *vethnet.Namespace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		ns.File.Close()
		return
	}
	p.ready = append(p.ready, ns)
}

// freeHolder takes a holder that runs.
func (p *Pool) freeHolder() *hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endDeadLocked()
	if len(p.free) == 0 {
		return nil
	}
	h := p.free[0]
	p.free = slices.Delete(p.free, 0, 1)
	return h
}

// release frees a holder that is in its own namespace.
func (p *Pool) release(h *hold) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.free = append(p.free, h)
	}
	p.mu.Unlock()
	if closed {
		p.endHolder(h)
	}
}

// ErrElsewhere means that a container's process is in another network than the one that it
// was to join.
var ErrElsewhere = errors.New("the engine has started the container in another network")

// Started checks that a process of a started container is in the network that Take has
// given it, and frees the holder. After an error the container must not be used; Drop
// follows when it is dead. ErrElsewhere.
func (p *Pool) Started(addr netip.Addr, pid int) error {
	p.mu.Lock()
	n := p.used[addr]
	p.mu.Unlock()
	if n == nil || n.hold == nil {
		return fmt.Errorf("network %v: %w", addr, holdfast.ErrNotFound)
	}
	if err := same(n.ns, netns.OfProcess(pid)); err != nil {
		return fmt.Errorf("network %v: %w", addr, err)
	}
	p.mu.Lock()
	p.used[addr] = &network{index: n.index}
	p.mu.Unlock()
	p.leave(n)
	return nil
}

// same returns an error if a path is not the file's namespace.
func same(file *os.File, path string) error {
	var a, b unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &a); err != nil {
		return err
	}
	if err := unix.Stat(path, &b); err != nil {
		return err
	}
	if a.Dev != b.Dev || a.Ino != b.Ino {
		return ErrElsewhere
	}
	return nil
}

// leave moves a network's holder back to its own namespace, and closes the network.
func (p *Pool) leave(n *network) {
	if n.hold == nil {
		return
	}
	if err := n.hold.conn.Enter(n.hold.home); err != nil {
		p.log.Debug("a holder does not leave a network (it is ended)", "container", n.hold.target.Name, "err", err)
		p.endHolder(n.hold)
	} else {
		p.release(n.hold)
	}
	n.ns.Close()
	p.wake.Set()
}

// Adopt is Take for the network of a running container that an earlier agent started.
func (p *Pool) Adopt(addr netip.Addr) {
	index, err := p.deps.Net.Index(addr)
	if err != nil {
		p.log.Debug("taking over a network", "address", addr, "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used[addr] == nil {
		p.used[addr] = &network{index: index}
	}
}

// Drop ends a network that was taken or adopted, when its session's container is dead or
// will not be created, and no runtime starts it any more. An unknown address is no error.
func (p *Pool) Drop(addr netip.Addr) {
	p.mu.Lock()
	n := p.used[addr]
	delete(p.used, addr)
	if n != nil {
		p.dropped = append(p.dropped, dropped{addr, n.index, time.Now()})
	}
	p.mu.Unlock()
	if n != nil {
		p.leave(n)
		p.wake.Set()
	}
}

// Counts are the numbers of networks and holders.
type Counts struct{ Ready, Used, Target, Holders, Free int }

// Counts returns how many networks are ready, in use, and kept ready while the node is
// idle, and how many holders there are and are free.
func (p *Pool) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := Counts{Ready: len(p.ready), Used: len(p.used), Holders: len(p.holders), Free: len(p.free)}
	if p.cfg.Holders > 0 {
		c.Target = p.cfg.Ready
	}
	return c
}
