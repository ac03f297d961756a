// Package evacuate removes the pods from a node that leaves within seconds. On
// notice the node is cordoned and tainted, and its pods are deleted: longest grace
// period first, each with its own grace period as far as time allows. A pod waits for
// its disruption budget only as long as its grace period still fits before the
// deadline. Pods that live shortly before the deadline are killed, verified dead, and
// then removed from the API server, so that a replacement may start at once. A
// StatefulSet may not start one before.
//
// Pods of DaemonSets and static pods are left.
//
// Pods are deleted, not evicted: RBAC and admission policies cannot confine evictions
// to a node, but an admission policy can confine deletions. Therefore this package
// reads the budgets itself. Two nodes that leave at the same time may each use up
// what one budget allows.
package evacuate

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/hosts/kube"
)

// Times.
const (
	// leastNotice is the assumed notice if the source gives no deadline: the
	// shortest notice of the supported clouds.
	leastNotice = 30 * time.Second
	// margin is the time before the deadline reserved for killing and reporting
	// the remaining pods.
	margin = 3 * time.Second
	// leastTime is the minimum time for an evacuation, even after the deadline.
	leastTime = 2 * time.Second
	// leftover is how long the mark of an earlier agent stays without a new
	// notice. A source needs time to answer first.
	leftover = 2 * time.Minute
	roundsOf = time.Second // interval of checks of the pods
	undoWith = 30 * time.Second
	// markFirst limits how long the deletion of pods waits for the node's mark,
	// together with a quarter of the remaining time. A pod deleted earlier might
	// be scheduled to the node again.
	markFirst = 5 * time.Second
)

// Kind is the kind of a notice.
type Kind string

// The kinds of notices.
const (
	Terminate Kind = "terminate" // the node leaves at the deadline
	Rebalance Kind = "rebalance" // it may leave: it takes no new pods
	Withdrawn Kind = "withdrawn" // it stays
)

// Notice is an event from a source of notices.
type Notice struct {
	Kind     Kind
	Source   string
	Reason   string    // for display
	Deadline time.Time // zero: not given
	// Done tells the source that the node can be stopped; nil: the source needs
	// no answer.
	Done func(context.Context) error
}

// Killer ends containers of pods at once.
type Killer interface {
	// Kill kills all containers of the pods with these uids, and returns the uids
	// of the pods without a running container.
	Kill(ctx context.Context, uids []string) (dead []string, err error)
}

// Config identifies the node.
type Config struct {
	Node string
	// Leftover is how long the mark of an earlier agent stays without a notice;
	// 0: two minutes.
	Leftover time.Duration
}

// Evacuator acts on notices. Run may be called once; Tell at any time and from any
// goroutine.
type Evacuator struct {
	client *kube.Client
	killer Killer
	conf   Config
	m      *Metrics
	log    *slog.Logger

	notices chan Notice
}

// New returns an idle Evacuator. With a nil m its metrics are not registered.
func New(client *kube.Client, killer Killer, conf Config, m *Metrics, log *slog.Logger) *Evacuator {
	conf.Leftover = cmp.Or(conf.Leftover, leftover)
	return &Evacuator{client: client, killer: killer, conf: conf, m: cmp.Or(m, NewMetrics(prometheus.NewRegistry())), log: log, notices: make(chan Notice, 64)}
}

// Tell queues a notice. It blocks only if 64 notices are queued.
func (e *Evacuator) Tell(ctx context.Context, n Notice) {
	select {
	case e.notices <- n:
	case <-ctx.Done():
	}
}

// Run acts on notices until ctx is done. A marked node then stays marked: either
// it leaves, or the next agent removes the mark.
func (e *Evacuator) Run(ctx context.Context) error {
	look := time.NewTimer(e.conf.Leftover)
	defer look.Stop()
	var under underWay
	defer under.stop()
	for {
		select {
		case n := <-e.notices:
			look.Stop()
			e.heed(ctx, n, &under)
		case <-look.C:
			e.undo(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// heed acts on one notice.
func (e *Evacuator) heed(ctx context.Context, n Notice, under *underWay) {
	e.log.Warn("notice", "source", n.Source, "kind", n.Kind, "reason", n.Reason, "deadline", n.Deadline)
	e.m.notices.WithLabelValues(n.Source, string(n.Kind)).Inc()
	switch n.Kind {
	case Rebalance:
		if under.running() {
			return // it is already marked
		}
		under.begin(ctx, time.Time{}, func(ctx context.Context) {
			if err := e.mark(ctx); err != nil && ctx.Err() == nil {
				e.log.Error("kubernetes: this node may leave, and cordoning it failed", "err", err)
			}
		})
	case Terminate:
		deadline := n.Deadline
		if deadline.IsZero() {
			deadline = time.Now().Add(leastNotice)
		}
		if under.running() && !under.deadline.IsZero() && !deadline.Before(under.deadline) {
			return // the running evacuation ends before
		}
		under.begin(ctx, deadline, func(ctx context.Context) { e.evacuate(ctx, n, deadline) })
	case Withdrawn:
		under.stop()
		e.undo(ctx)
	}
}

// underWay is the action for the current notice, which runs while further notices
// are received. One goroutine uses it.
type underWay struct {
	deadline time.Time // zero: the node may stay
	cancel   context.CancelFunc
	wait     sync.WaitGroup
}

func (u *underWay) running() bool { return u.cancel != nil }

// begin stops the running action and starts do.
func (u *underWay) begin(ctx context.Context, deadline time.Time, do func(context.Context)) {
	u.stop()
	ctx, u.cancel = context.WithCancel(ctx)
	u.deadline = deadline
	u.wait.Go(func() { do(ctx) })
}

func (u *underWay) stop() {
	if u.cancel != nil {
		u.cancel()
		u.wait.Wait()
		u.cancel = nil
	}
}

// evacuate carries out the evacuation until the deadline.
func (e *Evacuator) evacuate(ctx context.Context, n Notice, deadline time.Time) {
	begun := time.Now()
	end := slices.MaxFunc([]time.Time{deadline.Add(-margin), begun.Add(leastTime)}, time.Time.Compare)
	last := end.Add(margin)
	var marking sync.WaitGroup
	defer marking.Wait()
	marked := make(chan struct{})
	marking.Go(func() {
		defer close(marked)
		limited, cancel := context.WithDeadline(ctx, end)
		defer cancel()
		if err := e.mark(limited); err != nil && ctx.Err() == nil {
			e.log.Error("kubernetes: this node is leaving, and cordoning it failed", "err", err)
		}
	})
	select {
	case <-marked:
	case <-time.After(min(markFirst, end.Sub(begun)/4)):
	case <-ctx.Done():
	}
	r := run{e: e, end: end, asked: map[string]bool{}, told: map[string]bool{}}
	left := r.askAll(ctx)
	if ctx.Err() != nil {
		return // withdrawn, or the agent ends
	}
	r.kill(ctx, left, last)
	if ctx.Err() != nil {
		return
	}
	r.report(begun)
	if n.Done != nil && r.count[Left] == 0 {
		if err := n.Done(ctx); err != nil {
			e.log.Warn("telling the source of a notice that nothing is left on this node", "source", n.Source, "err", err)
		}
	}
	e.event(ctx, kube.Reference{Kind: "Node", Name: e.conf.Node, UID: e.conf.Node}, "HoldfastEvacuated", r.words()+" ("+n.Source+": "+n.Reason+")")
}

// event writes an event as far as time allows, and logs it.
func (e *Evacuator) event(ctx context.Context, about kube.Reference, reason, message string) {
	ctx, cancel := context.WithTimeout(ctx, margin)
	defer cancel()
	err := e.client.Tell(ctx, kube.Event{Name: kube.EventName(about.Name), About: about, Warning: true, Reason: reason, Message: message, Component: "holdfast", Host: e.conf.Node, At: time.Now()})
	if err != nil && !errors.Is(err, context.Canceled) {
		e.log.Debug("kubernetes: writing an event failed", "about", about.Name, "err", err)
	}
}
