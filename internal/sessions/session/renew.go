package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

const (
	// maxTries is how many renewals may wait for an answer. A new one is sent while
	// others wait, because a hang usually affects one connection, and a slow store may
	// answer each of them in time although it takes longer than Renew.
	maxTries = 4
	// longestTry bounds an attempt if there is no fence.
	longestTry = 30 * time.Second
	// minRetry is the shortest time between two attempts to kill what is fenced.
	minRetry = 50 * time.Millisecond
)

// Run renews the lease and publishes the node's record until ctx is done. It may be
// called after Hold.
//
// Run calls lost in two cases. If the lease is gone, all records under it are gone, so
// the containers must die before anything else is claimed; then Run gets a new lease.
// If the lease has not been renewed for Fence, nothing is claimed until it is renewed.
// lost returns when all containers are dead or its context is done; in the second case
// it is called again. Several goroutines call it.
//
// Run returns ErrDuplicateNode, after lost, if another agent writes the node's record.
// Any other error means that the renewals could not start.
func (l *Lease) Run(ctx context.Context, self func() holdfast.Node, lost func(context.Context)) error {
	// These timers need a file descriptor. They are created now, because later there
	// may be none left.
	renew, err := boottime.NewAlarm()
	if err != nil {
		return fmt.Errorf("renewing the node's lease: %w", err)
	}
	defer renew.Close()
	guard, err := boottime.NewAlarm()
	if err != nil {
		return fmt.Errorf("renewing the node's lease: %w", err)
	}
	defer guard.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// The goroutine that finds a duplicate node kills what is held first.
	stop := func(err error) {
		if errors.Is(err, ErrDuplicateNode) {
			l.log.Error("this node stops: its id is in use by another agent", "err", err)
			end(err)
		}
	}
	var parts sync.WaitGroup
	parts.Go(func() { stop(l.renew(ctx, renew, lost)) })
	parts.Go(func() { stop(l.publish(ctx, self, lost)) })
	if l.cfg.Fence > 0 {
		parts.Go(func() { l.guard(ctx, guard, lost) })
	}
	parts.Wait()
	if err := context.Cause(ctx); errors.Is(err, ErrDuplicateNode) {
		return err
	}
	return nil
}

// outage logs when an operation starts to fail and when it succeeds again.
type outage struct {
	mu   sync.Mutex
	away bool
	log  *slog.Logger
	what string
}

func (o *outage) note(ctx context.Context, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case err != nil && !o.away:
		o.log.Warn("the store does not take "+o.what+" (will be tried again)", "err", err)
	case err == nil && o.away:
		o.log.Info("the store takes " + o.what + " again")
	}
	o.away = err != nil
}

// renew sends a renewal every Renew, independently of the results of earlier ones. It
// returns ErrDuplicateNode, or nil when ctx is done.
func (l *Lease) renew(ctx context.Context, alarm *boottime.Alarm, lost func(context.Context)) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	state := &outage{log: l.log, what: "the renewal of this node's lease"}
	free := make(chan struct{}, maxTries)
	var tries sync.WaitGroup
	defer tries.Wait()
	for {
		h := l.held.Load()
		if alarm.Wait(ctx, boottime.Now().Add(h.Timing.Renew)) != nil {
			if err := context.Cause(ctx); errors.Is(err, ErrDuplicateNode) {
				return err
			}
			return nil
		}
		if h = l.held.Load(); h.gone.Load() {
			continue // it is being replaced
		}
		select {
		case free <- struct{}{}:
		default:
			continue
		}
		tries.Go(func() {
			defer func() { <-free }()
			err := l.try(ctx, h)
			state.note(ctx, err)
			if errors.Is(err, store.ErrLeaseGone) && h.gone.CompareAndSwap(false, true) {
				if err := l.replace(ctx, lost); err != nil {
					end(err)
				}
			}
		})
	}
}

// try renews the lease once.
func (l *Lease) try(ctx context.Context, h *lease) error {
	limit := longestTry
	if h.Timing.Fence > 0 {
		limit = h.Timing.Fence / 2 // a call that hangs must not use up the fence (etcd#6922)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sent := boottime.Now()
	if err := l.store.KeepAlive(ctx, h.ID); err != nil {
		return fmt.Errorf("renewing the node's lease: %w", err)
	}
	l.renewed(h, sent)
	if h.unkept.Load() && l.writeFile(h) == nil {
		h.unkept.Store(false)
	}
	return nil
}

// replace kills what was held under a lease that is gone, and then gets a new one. It
// gets it only after everything was seen dead: other nodes may own the sessions by
// now, and the deadline of the new lease would apply to the containers that still run.
// It returns ErrDuplicateNode, or nil when ctx is done or there is a new lease.
func (l *Lease) replace(ctx context.Context, lost func(context.Context)) error {
	l.log.Error("the node's lease has expired; killing what it held")
	l.endAll(ctx, lost)
	limit := l.cfg.TTL + l.cfg.TTL/2
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, 2*limit)
		err := l.grantWithin(limited, limit)
		cancel()
		if err == nil {
			l.log.Info("this node has a new lease")
			return nil
		}
		if errors.Is(err, ErrDuplicateNode) && ctx.Err() == nil {
			return err
		}
		l.log.Error("this node gets no new lease (will be tried again)", "err", err)
		_ = tasks.Sleep(ctx, min(l.cfg.Renew, time.Second))
	}
	return nil
}

// endAll calls lost until it returns within its time, which means that everything is
// dead, or until ctx is done.
func (l *Lease) endAll(ctx context.Context, lost func(context.Context)) {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, l.cfg.TTL)
		lost(limited)
		ended := limited.Err() == nil
		cancel()
		if ended {
			return
		}
		l.log.Error("what the node's lease held is not all seen dead (will be tried again); nothing new is claimed")
		_ = tasks.Sleep(ctx, max(l.cfg.Renew/4, minRetry))
	}
}

// guard kills what the lease holds when the lease has not been renewed for Fence. It
// does not wait for the store, because the store may hang.
func (l *Lease) guard(ctx context.Context, alarm *boottime.Alarm, lost func(context.Context)) {
	fenced, ended := false, false
	for {
		h := l.held.Load()
		next := h.fence()
		switch overdue := next.Until() <= 0; {
		case !overdue && fenced:
			l.log.Warn("the node's lease is renewed; what it held was killed")
			fenced, ended = false, false
		case overdue && !fenced:
			l.log.Error("the node's lease could not be renewed; killing what it holds before other nodes may claim it", "fence", h.Timing.Fence)
			fenced = true
		}
		if fenced && !ended {
			killing, cancel := context.WithTimeout(ctx, h.Timing.KillBudget)
			lost(killing)
			ended = killing.Err() == nil
			cancel()
		}
		if fenced {
			next = boottime.Now().Add(max(h.Timing.Renew/4, minRetry))
		}
		if alarm.Wait(ctx, next) != nil {
			return
		}
	}
}

// publish looks at the node's record every Publish, and writes it if it has changed or is
// due (see record). If the record belongs to another lease, or another agent writes it under
// this one, everything on this node is killed and the error is ErrDuplicateNode.
func (l *Lease) publish(ctx context.Context, self func() holdfast.Node, lost func(context.Context)) error {
	state := &outage{log: l.log, what: "this node's record"}
	tick := time.NewTicker(l.cfg.Publish)
	defer tick.Stop()
	var own ownWrites
	var last record
	for {
		h, n := l.held.Load(), self()
		own.under(h)
		if now := time.Now(); own.suspects(now, l.cfg.Publish) || last.due(h.ID, n, now, l.cfg.Publish) {
			if l.cloned(ctx, h, &own) && h.gone.CompareAndSwap(false, true) {
				return l.endDuplicate(ctx, lost)
			}
			own.add(n.SeenAt)
			err := l.publishOnce(ctx, h, n)
			state.note(ctx, err)
			// A lease that is gone is not a duplicate: replace handles it. After a restore of
			// the store, the record may be this node's, under an earlier lease.
			if errors.Is(err, store.ErrNodeTaken) && l.held.Load() == h && !errors.Is(l.try(ctx, h), store.ErrLeaseGone) && h.gone.CompareAndSwap(false, true) {
				return l.endDuplicate(ctx, lost)
			}
			if last = (record{}); err == nil {
				last = record{h.ID, n, now}
			}
		}
		select {
		case <-tick.C:
		case <-l.changed:
			last = record{}
		case <-ctx.Done():
			return nil
		}
	}
}

// Changed makes publish write the node's record now, because whether the node accepts
// sessions has changed. Any goroutine may call it. It does not block.
func (l *Lease) Changed() {
	select {
	case l.changed <- struct{}{}:
	default: // a write is already due
	}
}

// publishTime bounds one write of the node's record.
const publishTime = 2 * time.Second

func (l *Lease) publishOnce(ctx context.Context, h *lease, n holdfast.Node) error {
	if h.gone.Load() {
		return nil // replace publishes the record under the new lease
	}
	n.Lease = int64(h.ID)
	ctx, cancel := context.WithTimeout(ctx, max(l.cfg.Publish, publishTime))
	defer cancel()
	if err := l.store.PutNode(ctx, n, h.ID); err != nil {
		return fmt.Errorf("publishing the node's record: %w", err)
	}
	return nil
}
