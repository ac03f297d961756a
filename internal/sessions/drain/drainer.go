package drain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/sessions/session"
)

// LeastBudget is the budget of a drain whose deadline has passed.
const LeastBudget = 2 * time.Second

// Drainer drains a node, one drain at a time, and decides whether the node accepts
// new sessions. Its methods may be called from any goroutine.
type Drainer struct {
	// Host returns the node that a drain acts on. With last set, the agent ends after
	// the drain.
	Host     func(last bool) Node
	Sessions *session.Manager
	// Changed is called when the node's record has to be published.
	Changed func()
	// CordonFile exists while an operator has cordoned the node: a cordon outlasts
	// restarts of the agent and of the host.
	CordonFile string
	Metrics    *Metrics
	Log        *slog.Logger

	mu         sync.Mutex // held during a drain
	last       bool       // the last drain has begun; guarded by mu
	preemption preemption
}

// Drain hands over everything that the node owns. It waits for a running drain; the
// wait is part of the budget of o. A running drain that has more time is cut short.
// progress may be nil.
func (d *Drainer) Drain(ctx context.Context, o Options, progress func(holdfast.Step)) holdfast.DrainReport {
	r := d.drain(ctx, o, progress, false)
	d.Log.Info("drained", "owned", r.Owned, "dead", r.Dead, "released", r.Released, "left", len(r.Left), "took", r.Took, "notice", r.Notice)
	return r
}

// DrainLast is Drain for an agent that ends. After it the node accepts no session.
func (d *Drainer) DrainLast(ctx context.Context, o Options, progress func(holdfast.Step)) holdfast.DrainReport {
	return d.drain(ctx, o, progress, true)
}

func (d *Drainer) drain(ctx context.Context, o Options, progress func(holdfast.Step), last bool) holdfast.DrainReport {
	until := time.Now().Add(o.Budget)
	arrived := d.preemption.request(until)
	d.mu.Lock()
	defer d.mu.Unlock()
	arrived()
	d.last = d.last || last
	o.Budget = max(time.Until(until), min(o.Budget, LeastBudget))
	ctx, over := d.preemption.begin(ctx, until)
	defer over()
	r := Run(ctx, d.Host(d.last), o, progress)
	d.Metrics.observe(r)
	return r
}

// Busy reports whether a drain is running.
func (d *Drainer) Busy() bool {
	if !d.mu.TryLock() {
		return true
	}
	d.mu.Unlock()
	return false
}

// StopClaiming refuses new sessions, without a drain.
func (d *Drainer) StopClaiming() {
	d.Sessions.StopClaiming()
	d.Changed()
}

// Cordon refuses new sessions until Uncordon. The node keeps its sessions.
func (d *Drainer) Cordon() error {
	if err := os.WriteFile(d.CordonFile, nil, 0o600); err != nil {
		return fmt.Errorf("write the cordon: %w", err)
	}
	d.Sessions.Cordon()
	d.Changed()
	return nil
}

// Cordoned reports whether an operator has cordoned the node.
func (d *Drainer) Cordoned() bool {
	_, err := os.Stat(d.CordonFile)
	return !errors.Is(err, fs.ErrNotExist)
}

// Uncordon removes a cordon and accepts sessions again, as ClaimAgain does.
func (d *Drainer) Uncordon() error {
	if err := os.Remove(d.CordonFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the cordon: %w", err)
	}
	return d.ClaimAgain()
}

// ClaimAgain accepts sessions again when a running drain has ended. It returns
// holdfast.ErrDraining if the node is cordoned or the agent ends.
func (d *Drainer) ClaimAgain() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.last:
		return fmt.Errorf("the agent is ending: %w", holdfast.ErrDraining)
	case d.Cordoned():
		return fmt.Errorf("the node is cordoned: %w", holdfast.ErrDraining)
	}
	d.Sessions.Claim()
	d.Changed()
	return nil
}

// preemption cuts a running drain short for one that has less time: a drain with a
// budget of many minutes for snapshots gives way to the drain of a preemption notice.
type preemption struct {
	mu    sync.Mutex
	until time.Time // the deadline of the running drain; zero: none runs
	end   context.CancelCauseFunc
}

// errPreempted is the cause of a drain that was cut short.
var errPreempted = errors.New("another drain has less time")

// request announces a drain with the deadline until. A running drain with a later
// deadline may use half of the remaining time. The caller calls arrived when it has
// its turn.
func (p *preemption) request(until time.Time) (arrived func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.until.After(until) {
		return func() {}
	}
	end := p.end
	timer := time.AfterFunc(time.Until(until)/2, func() { end(errPreempted) })
	return func() { timer.Stop() }
}

// begin is called when a drain begins. The caller calls over when it has ended.
func (p *preemption) begin(ctx context.Context, until time.Time) (_ context.Context, over func()) {
	ctx, end := context.WithCancelCause(ctx)
	p.set(until, end)
	return ctx, func() {
		p.set(time.Time{}, nil)
		end(nil)
	}
}

func (p *preemption) set(until time.Time, end context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until, p.end = until, end
}
