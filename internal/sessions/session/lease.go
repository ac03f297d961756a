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
	"holdfast/internal/platform/tasks"
)

// LeaseConfig is the configuration of a Lease.
type LeaseConfig struct {
	Node    holdfast.NodeID // node that holds the lease
	Host    string          // this boot of this host, with the data directory that the agent has locked
	Address string          // of its gateway; shown to another host with the same id
	File    string          // file that keeps the lease over a restart of the agent
	// HandedOver says that the earlier agent has passed its lease to this one, and ends.
	HandedOver bool
	TTL        time.Duration // whole seconds
	Renew      time.Duration // between renewals, under TTL
	Publish    time.Duration // between looks at the node's record, which is written if it has changed or is old

	// Fence is the time from the sending of the last good renewal until everything
	// under the lease is killed. That takes KillBudget at most, so that it is dead
	// before the lease can expire and other nodes claim it (holdfast.Timing). 0 means
	// never, for a store in which no other node can claim.
	Fence      time.Duration
	KillBudget time.Duration

	// Deadline is called after each good renewal with the time at which the deadman
	// has to kill what the lease holds: holdfast.Timing.Deadline after the sending of
	// the renewal. It must not block. It may be nil.
	Deadline func(boottime.Instant)
}

func (c LeaseConfig) timing() holdfast.Timing {
	return holdfast.Timing{Renew: c.Renew, Fence: c.Fence, KillBudget: c.KillBudget, TTL: c.TTL}
}

// Lease is this node's lease on everything that the node owns. A restarted agent
// continues with the lease of its predecessor, so that the records stay.
type Lease struct {
	cfg   LeaseConfig
	store store.Store
	log   *slog.Logger
	held  atomic.Pointer[lease] // nil before Hold

	changed   chan struct{} // publish the node's record now
	duplicate atomic.Bool   // another agent writes this node's record under this lease
}

// lease is one lease in the store. A node gets a new one when the old one is gone.
type lease struct {
	ID     store.LeaseID   `json:"id"`
	Timing holdfast.Timing `json:"timing"` // timing with which it was granted
	Host   string          `json:"host"`   // LeaseConfig.Host of its agent; "" from an agent of an earlier version

	good atomic.Int64 // boottime.Instant of the sending of the last good renewal
	gone atomic.Bool  // the store has reported it gone

	unkept atomic.Bool // the file could not be written

	first time.Time // SeenAt of the record that was written with the grant; zero if this agent was not granted it
}

// fence returns when everything under the lease has to be killed. Without a fence it
// is far in the future.
func (l *lease) fence() boottime.Instant {
	if l.Timing.Fence == 0 {
		return boottime.Now().Add(24 * time.Hour)
	}
	return boottime.Instant(l.good.Load()).Add(l.Timing.Fence)
}

// valid reports whether the node may claim under the lease.
func (l *lease) valid() bool { return !l.gone.Load() && l.fence().Until() > 0 }

// NewLease returns a lease that is not held yet.
func NewLease(cfg LeaseConfig, s store.Store, log *slog.Logger) *Lease {
	return &Lease{cfg: cfg, store: s, log: log, changed: make(chan struct{}, 1)}
}

// ID returns the lease's id. It is 0 before Hold, and while the node may not claim
// because the lease was not renewed in time. Any goroutine may call it.
func (l *Lease) ID() store.LeaseID {
	if h := l.held.Load(); h != nil && h.valid() {
		return h.ID
	}
	return 0
}

// renewed records a successful renewal and the time of its sending. Answers may arrive
// in any order.
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

// ErrDuplicateNode means that another running agent has this node's id.
var ErrDuplicateNode = errors.New("another agent with this node's id is alive")

// Hold continues with the kept lease, or gets a new one and keeps it. From then on Run has
// to renew the lease.
//
// In a store that other nodes share, Hold continues with a lease only if the kept file
// names this Host: the lock on the data directory then proves that the agent which wrote
// it has ended. A copy of the file proves nothing. Without proof, Hold does not renew
// the lease, but waits until the store has ended it.
//
// In such a store Hold also waits until the record of another agent with this node's
// id is gone, for about the lifetime of a lease. That agent is either an earlier one
// whose lease was not kept, or one on another host. The error is ErrDuplicateNode if the
// record stays, and as soon as the record shows that its agent is alive.
func (l *Lease) Hold(ctx context.Context) error {
	h, err := l.readFile()
	if err != nil {
		return err
	}
	switch {
	case h == nil:
	case l.cfg.Fence > 0 && h.Host != "" && h.Host != l.cfg.Host:
		l.log.Warn("the kept lease is that of another host, or from before this host's start; waiting until it has expired", "lease", h.ID)
	default:
		err := l.resume(ctx, h)
		if !errors.Is(err, store.ErrLeaseGone) {
			return err
		}
		l.log.Warn("the kept lease is gone; what it held was released", "lease", h.ID)
	}
	return l.grantWithin(ctx, l.cfg.TTL+l.cfg.TTL/2)
}

// resume continues with the kept lease. Errors: store.ErrLeaseGone, ErrDuplicateNode.
func (l *Lease) resume(ctx context.Context, h *lease) error {
	sent := boottime.Now()
	if err := l.store.KeepAlive(ctx, h.ID); err != nil {
		return fmt.Errorf("renewing the node's lease: %w", err)
	}
	l.chooseTiming(h)
	l.renewed(h, sent)
	if h.Host != l.cfg.Host {
		if err := l.awaitSilence(ctx, h); err != nil {
			return err
		}
		h.Host = l.cfg.Host
		if err := l.writeFile(h); err != nil {
			return err
		}
	}
	l.held.Store(h)
	return nil
}

// heartbeat is what this agent has seen of another agent's writes of the node's record.
type heartbeat struct {
	last   time.Time // SeenAt of the record
	writes int
}

// alive reads the node's record and reports whether another agent with this node's id is
// alive. An agent that has died may have left one write that the store carries out later:
// two changes prove life.
func (l *Lease) alive(ctx context.Context, b *heartbeat) bool {
	n, err := l.store.Node(ctx, l.cfg.Node)
	if err == nil && !n.SeenAt.Equal(b.last) {
		b.last = n.SeenAt
		b.writes++
	}
	return b.writes > 2
}

// awaitSilence keeps a lease whose file is from an agent of an earlier version, which does
// not name the host. It watches the node's record for four intervals of such an agent,
// and returns ErrDuplicateNode if an agent writes the record. The renewals do no harm
// meanwhile: another agent counts its fence from its own renewals.
func (l *Lease) awaitSilence(ctx context.Context, h *lease) error {
	if l.cfg.Fence == 0 || l.cfg.HandedOver {
		return nil
	}
	var other heartbeat
	for end := time.Now().Add(4 * l.cfg.Publish); time.Now().Before(end); {
		if l.alive(ctx, &other) {
			return l.duplicateNode(ctx)
		}
		if tasks.Sleep(ctx, min(l.cfg.Publish, l.cfg.Renew)/4) != nil {
			return context.Cause(ctx)
		}
		if err := l.try(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// chooseTiming chooses the timing of a kept lease. A lease with a shorter TTL than the
// configured one would expire before the new fence. It keeps its own timing until it
// is dropped.
func (l *Lease) chooseTiming(h *lease) {
	now := l.cfg.timing()
	if h.Timing.TTL != 0 && h.Timing.TTL < now.TTL {
		l.log.Warn("the node's lease was granted with another timing and keeps it; to use the configured one, drain this node and restart its agent",
			"ttl", h.Timing.TTL, "configured", now.TTL)
		return
	}
	h.Timing = now
}

// grantWithin calls grant, and retries until limit while another agent of this node
// holds a record and does not show that it is alive.
func (l *Lease) grantWithin(ctx context.Context, limit time.Duration) error {
	var other heartbeat
	for begun, told := time.Now(), false; ; {
		err := l.grant(ctx)
		if !errors.Is(err, ErrDuplicateNode) || time.Since(begun) > limit || l.alive(ctx, &other) {
			return err
		}
		if !told {
			l.log.Warn("waiting until the lease of another agent of this node is gone", "err", err)
			told = true
		}
		if tasks.Sleep(ctx, min(l.cfg.Renew, time.Second)) != nil {
			return err
		}
	}
}

// grant gets a new lease. Error: ErrDuplicateNode.
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
	if h.first, err = l.publishFirst(ctx, id); err != nil {
		return err
	}
	return l.adopt(h, sent)
}

// adopt makes the node use a lease, which was renewed at the time sent. A new lease of a
// running agent is kept later if its file cannot be written now.
func (l *Lease) adopt(h *lease, sent boottime.Instant) error {
	h.Host = l.cfg.Host
	if err := l.writeFile(h); err != nil && l.held.Load() == nil {
		return err
	} else if err != nil {
		h.unkept.Store(true)
		l.log.Error("until this can be written, a next agent would wait for the end of the node's lease", "err", err)
	}
	l.held.Store(h)
	l.renewed(h, sent)
	l.Changed()
	return nil
}

// recorded returns the lease of the node's record, in a store that no other node can
// use, if the lease was not kept. It returns nil if there is none.
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

// publishFirst writes the node's first record under a new lease, and returns its SeenAt. If two hosts with one
// id start at the same time, the store accepts one record; the other host gets
// ErrDuplicateNode. A lease that is not used is revoked.
func (l *Lease) publishFirst(ctx context.Context, id store.LeaseID) (time.Time, error) {
	now := time.Now().UTC()
	first := holdfast.Node{ID: l.cfg.Node, Address: l.cfg.Address, Draining: true, Lease: int64(id), Since: now, SeenAt: now}
	err := l.store.PutNode(ctx, first, id)
	if err == nil {
		return now, nil
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTime)
	defer cancel()
	if failed := l.store.Revoke(ending, id); failed != nil {
		l.log.Debug("revoking an unused lease", "lease", id, "err", failed)
	}
	if errors.Is(err, store.ErrNodeTaken) {
		return now, l.duplicateNode(ctx)
	}
	return now, fmt.Errorf("getting a lease: %w", err)
}

// duplicateNode returns the error about another running agent of this node.
func (l *Lease) duplicateNode(ctx context.Context) error {
	if err := l.checkAlone(ctx); errors.Is(err, ErrDuplicateNode) {
		return err
	}
	return fmt.Errorf("node %s: %w", l.cfg.Node, ErrDuplicateNode)
}

// checkAlone returns an error if a record of this node belongs to another lease. At
// that time this node has no record, or not that one.
func (l *Lease) checkAlone(ctx context.Context) error {
	n, err := l.store.Node(ctx, l.cfg.Node)
	switch {
	case errors.Is(err, holdfast.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("getting a lease: %w", err)
	}
	return holdfast.WithHint(fmt.Errorf("node %s, with its gateway at %s: %w", n.ID, n.Address, ErrDuplicateNode),
		"give each host its own node id; on a copy of a host with: holdfast node new-id. On the same host, an agent may run with another data directory")
}

// KeptBy returns LeaseConfig.Host of the agent that kept a lease in the file, "" for none.
func KeptBy(file string) (string, error) {
	h, err := NewLease(LeaseConfig{File: file}, nil, slog.New(slog.DiscardHandler)).readFile()
	if h == nil {
		return "", err
	}
	return h.Host, nil
}

// readFile reads the lease from disk. It returns nil if there is none or it cannot be
// read.
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

// writeFile writes the lease atomically: after a power failure the file is the old or
// the new one.
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

// Drop ends the lease after everything under it was released, so that the node
// disappears from the store at once.
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
