package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/store"
)

// LeaseConfig is what a Lease needs to know.
type LeaseConfig struct {
	Node    holdfast.NodeID // whose lease it is
	Address string          // of its gateway, told to another host that has the same id
	File    string          // where the lease is kept over a restart of the agent
	TTL     time.Duration   // whole seconds
	Renew   time.Duration   // between renewals, under TTL
	Publish time.Duration   // between writes of the node's record

	// Fence is how long after the sending of the last good renewal what the
	// lease holds is ended, within KillBudget, so that it is dead before the
	// lease can expire and others claim it (holdfast.Timing). 0: never, for a
	// store that nobody else can claim in.
	Fence      time.Duration
	KillBudget time.Duration

	// Deadline is told, after each good renewal, when whoever stands behind
	// this process has to end what the lease holds: holdfast.Timing.Deadline
	// after its sending. It must not wait. nil: nobody is told.
	Deadline func(boottime.Instant)
}

func (c LeaseConfig) timing() holdfast.Timing {
	return holdfast.Timing{Renew: c.Renew, Fence: c.Fence, KillBudget: c.KillBudget, TTL: c.TTL}
}

// Lease is this node's lease on everything it owns. A restarted agent goes on
// with the lease of the one before it, so that the records stay.
type Lease struct {
	cfg   LeaseConfig
	store store.Store
	log   *slog.Logger
	held  atomic.Pointer[lease] // nil before Hold

	changed chan struct{} // publish now
}

// lease is one lease in the store. A node gets another one when it is gone.
type lease struct {
	ID     store.LeaseID   `json:"id"`
	Timing holdfast.Timing `json:"timing"` // that it was taken with

	good atomic.Int64 // boottime.Instant of the sending of the last good renewal
	gone atomic.Bool  // the store has said so
}

// fence is when what the lease holds has to be ended; far away where it never
// has to.
func (l *lease) fence() boottime.Instant {
	if l.Timing.Fence == 0 {
		return boottime.Now().Add(24 * time.Hour)
	}
	return boottime.Instant(l.good.Load()).Add(l.Timing.Fence)
}

// valid reports whether the lease may be claimed under.
func (l *lease) valid() bool { return !l.gone.Load() && l.fence().Until() > 0 }

// NewLease returns a lease that is not held yet.
func NewLease(cfg LeaseConfig, s store.Store, log *slog.Logger) *Lease {
	return &Lease{cfg: cfg, store: s, log: log, changed: make(chan struct{}, 1)}
}

// ID is the lease's id, 0 before Hold and while nothing may be claimed under it
// because it could not be renewed. Any goroutine may call it.
func (l *Lease) ID() store.LeaseID {
	if h := l.held.Load(); h != nil && h.valid() {
		return h.ID
	}
	return 0
}

// renewed takes note of a renewal that was sent at a moment, and succeeded.
// Answers may come in any order.
func (l *Lease) renewed(h *lease, sent boottime.Instant) {
	for {
		before := h.good.Load()
		if int64(sent) <= before {
			return
		}
		if h.good.CompareAndSwap(before, int64(sent)) {
			break
		}
	}
	if h.Timing.Fence > 0 && l.cfg.Deadline != nil {
		l.cfg.Deadline(boottime.Instant(h.good.Load()).Add(h.Timing.Deadline()))
	}
}

// ErrDuplicateNode means that another living agent has this node's id.
var ErrDuplicateNode = errors.New("another agent with this node's id is alive")

// Hold takes the kept lease up again, or gets a new one and keeps it. In a
// store that others share it first waits, for about as long as a lease lives,
// until another living agent's record of this node is gone: that of an agent
// whose lease was not kept, or that of another host, which is ErrTwin. From then
// on Run has to renew it.
func (l *Lease) Hold(ctx context.Context) error {
	h, err := l.readFile()
	if err != nil {
		return err
	}
	if h != nil {
		sent := boottime.Now()
		err := l.store.KeepAlive(ctx, h.ID)
		if err == nil {
			l.chooseTiming(h)
			l.held.Store(h)
			l.renewed(h, sent)
			return nil
		}
		if !errors.Is(err, store.ErrLeaseGone) {
			return fmt.Errorf("renewing the node's lease: %w", err)
		}
		l.log.Warn("the kept lease is gone; what it held was given up", "lease", h.ID)
	}
	return l.grantWithin(ctx, l.cfg.TTL+l.cfg.TTL/2)
}

// chooseTiming decides which timing goes for a kept lease. One that lives shorter than
// the configuration says now would be gone before the new fence: it keeps its
// own timing, until it is dropped.
func (l *Lease) chooseTiming(h *lease) {
	now := l.cfg.timing()
	if h.Timing.TTL != 0 && h.Timing.TTL < now.TTL {
		l.log.Warn("the node's lease was taken with another timing and keeps it; the new one comes with a drain of this node and a restart",
			"ttl", h.Timing.TTL, "configured", now.TTL)
		return
	}
	h.Timing = now
}

// grantWithin is grant once there is no other agent of this node.
func (l *Lease) grantWithin(ctx context.Context, limit time.Duration) error {
	for begun, told := time.Now(), false; ; {
		err := l.grant(ctx)
		if !errors.Is(err, ErrDuplicateNode) || time.Since(begun) > limit {
			return err
		}
		if !told {
			l.log.Warn("waiting until the lease of another agent of this node is gone", "err", err)
			told = true
		}
		select {
		case <-time.After(min(l.cfg.Renew, time.Second)):
		case <-ctx.Done():
			return err
		}
	}
}

// grant gets a new lease. ErrTwin.
func (l *Lease) grant(ctx context.Context) error {
	if l.cfg.Fence == 0 {
		if h := l.recorded(ctx); h != nil {
			return l.adopt(h, boottime.Now())
		}
	} else if err := l.checkAlone(ctx); err != nil {
		return err
	}
	h := &lease{Timing: l.cfg.timing()}
	sent := boottime.Now()
	id, ttl, err := l.store.Grant(ctx, l.cfg.TTL)
	if err != nil {
		return fmt.Errorf("getting a lease: %w", err)
	}
	if ttl < l.cfg.TTL {
		return fmt.Errorf("getting a lease: the store gives it %v instead of %v", ttl, l.cfg.TTL)
	}
	h.ID = id
	if err := l.publishFirst(ctx, id); err != nil {
		return err
	}
	return l.adopt(h, sent)
}

// adopt has the node go on with a lease that was renewed at a moment.
func (l *Lease) adopt(h *lease, sent boottime.Instant) error {
	if err := l.writeFile(h); err != nil {
		return err
	}
	l.held.Store(h)
	l.renewed(h, sent)
	l.Changed()
	return nil
}

// recorded is the lease that the node's record hangs on, in a store of its own
// that nobody else can be in: one that was not kept. nil where there is none.
func (l *Lease) recorded(ctx context.Context) *lease {
	n, err := l.store.Node(ctx, l.cfg.Node)
	if err != nil || n.Lease == 0 {
		return nil
	}
	h := &lease{ID: store.LeaseID(n.Lease), Timing: l.cfg.timing()}
	if l.store.KeepAlive(ctx, h.ID) != nil {
		return nil
	}
	return h
}

// publishFirst writes the node's first record under a new lease. Of two hosts with one
// id that come up at once the store lets one: ErrTwin. A lease that comes to
// nothing is ended.
func (l *Lease) publishFirst(ctx context.Context, id store.LeaseID) error {
	now := time.Now().UTC()
	first := holdfast.Node{ID: l.cfg.Node, Address: l.cfg.Address, Draining: true, Lease: int64(id), Since: now, SeenAt: now}
	err := l.store.PutNode(ctx, first, id)
	if err == nil {
		return nil
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTime)
	defer cancel()
	if failed := l.store.Revoke(ending, id); failed != nil {
		l.log.Debug("ending a lease that came to nothing", "lease", id, "err", failed)
	}
	if errors.Is(err, store.ErrNodeTaken) {
		return l.duplicateNode(ctx)
	}
	return fmt.Errorf("getting a lease: %w", err)
}

// duplicateNode is the error of another living agent of this node.
func (l *Lease) duplicateNode(ctx context.Context) error {
	if err := l.checkAlone(ctx); errors.Is(err, ErrDuplicateNode) {
		return err
	}
	return fmt.Errorf("node %s: %w", l.cfg.Node, ErrDuplicateNode)
}

// checkAlone makes sure that no living record of this node hangs on another lease.
// This node has none when it asks, or not its record.
func (l *Lease) checkAlone(ctx context.Context) error {
	n, err := l.store.Node(ctx, l.cfg.Node)
	switch {
	case errors.Is(err, holdfast.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("getting a lease: %w", err)
	}
	return holdfast.WithHint(fmt.Errorf("node %s, with its gateway at %s: %w", n.ID, n.Address, ErrDuplicateNode),
		"give each host its own node id; if this was the same host, its agent may still run with another data directory")
}

// readFile reads the lease on disk, nil where there is none or it cannot be read.
func (l *Lease) readFile() (*lease, error) {
	text, err := os.ReadFile(l.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kept lease: %w", err)
	}
	h := &lease{}
	if err := json.Unmarshal(text, h); err != nil || h.ID == 0 {
		l.log.Warn("the kept lease cannot be read; getting a new one", "file", l.cfg.File, "err", err)
		return nil, nil
	}
	return h, nil
}

// writeFile writes the lease so that a power cut leaves the old file or the new one.
func (l *Lease) writeFile(h *lease) error {
	text, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("keeping the lease: %w", err)
	}
	if err := atomicfile.Write(l.cfg.File, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("keeping the lease: %w", err)
	}
	return nil
}

// Drop ends the lease after everything under it was given up, so that the node
// is gone from the store at once.
func (l *Lease) Drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if h := l.held.Load(); h != nil {
		if err := l.store.Revoke(ctx, h.ID); err != nil {
			return fmt.Errorf("ending the node's lease: %w", err)
		}
	}
	if err := os.Remove(l.cfg.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("ending the node's lease: %w", err)
	}
	return nil
}
