// Package evacuate gets the pods off a node that goes away within seconds. On notice the
// node is cordoned and tainted, and its pods are deleted: those that need longest to end
// first, each with its own grace as far as there is time. A disruption budget is waited
// for as long as the pod's grace still fits behind, and no longer. What lives shortly
// before the deadline is killed, seen dead, and then taken off the API server, so that a
// pod in its place may start at once; of a StatefulSet it may not before.
//
// Pods of DaemonSets and those that the kubelet runs from files are left.
//
// Pods are deleted, not evicted: the right to evict cannot be confined to a node, and
// that to delete can (by an admission policy). So the budgets are read here, and two
// nodes that go at the same time may each take what one budget allows.
package evacuate

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/hosts/kube"
)

// Times.
const (
	// leastNotice is taken for the time there is where nobody says: what the cloud
	// with the shortest notice gives.
	leastNotice = 30 * time.Second
	// margin before the deadline is for killing what is left and saying so.
	margin = 3 * time.Second
	// leastTime is tried even where the deadline has passed.
	leastTime = 2 * time.Second
	// leftover is until a mark of an agent before us is taken away, unless a source
	// says by then that the node goes: it has to answer first.
	leftover = 2 * time.Minute
	roundsOf = time.Second // between two looks at the pods
	undoWith = 30 * time.Second
	// markFirst is how long the pods wait for the node to be marked, at most, or a
	// quarter of the time: what is ended before might come back to it.
	markFirst = 5 * time.Second
)

// Kind is what a notice says.
type Kind string

// The kinds of notices.
const (
	Going Kind = "terminate" // the node goes at the deadline
	Maybe Kind = "rebalance" // it may go: it takes no new pods
	Over  Kind = "over"      // it stays
)

// Notice is one event that a source told of.
type Notice struct {
	Kind     Kind
	Source   string
	Reason   string    // for people
	Deadline time.Time // zero: the source does not say
	// Done tells the source that nothing is left to lose; nil: there is nobody to
	// tell.
	Done func(context.Context) error
}

// Killer ends containers of pods at once.
type Killer interface {
	// Kill kills all containers of the pods with these uids, and returns the uids of
	// those of which none is alive.
	Kill(ctx context.Context, uids []string) (dead []string, err error)
}

// Config says which node it is.
type Config struct {
	Node string
	// Leftover is how long a mark of an agent before us stays without a notice; 0: two
	// minutes.
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

// New returns an Evacuator that does nothing yet; m may be nil.
func New(client *kube.Client, killer Killer, conf Config, m *Metrics, log *slog.Logger) *Evacuator {
	if conf.Leftover <= 0 {
		conf.Leftover = leftover
	}
	return &Evacuator{client: client, killer: killer, conf: conf, m: m, log: log, notices: make(chan Notice, 64)}
}

// Tell has a notice acted on. It blocks only where 64 wait.
func (e *Evacuator) Tell(ctx context.Context, n Notice) {
	select {
	case e.notices <- n:
	case <-ctx.Done():
	}
}

// Run acts on notices until ctx is done. The node stays marked then where it is: it goes,
// or the next agent sees that it does not.
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
	e.m.heard(n)
	switch n.Kind {
	case Maybe:
		if under.running() {
			return // it is marked already
		}
		under.begin(ctx, time.Time{}, func(ctx context.Context) {
			if err := e.mark(ctx); err != nil && ctx.Err() == nil {
				e.log.Error("kubernetes: this node may go and still takes pods", "err", err)
			}
		})
	case Going:
		deadline := n.Deadline
		if deadline.IsZero() {
			deadline = time.Now().Add(leastNotice)
		}
		if under.running() && !under.deadline.IsZero() && !deadline.Before(under.deadline) {
			return // what is under way will be over by then
		}
		under.begin(ctx, deadline, func(ctx context.Context) { e.evacuate(ctx, n, deadline) })
	case Over:
		under.stop()
		e.undo(ctx)
	}
}

// underWay is what is done about a notice, beside the hearing of others. It is used by
// one goroutine.
type underWay struct {
	deadline time.Time // zero: the node may stay
	cancel   context.CancelFunc
	wait     sync.WaitGroup
}

func (u *underWay) running() bool { return u.cancel != nil }

// begin stops what is under way and does something else.
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

// evacuate does all that is to be done until a deadline.
func (e *Evacuator) evacuate(ctx context.Context, n Notice, deadline time.Time) {
	begun := time.Now()
	end := deadline.Add(-margin)
	if least := begun.Add(leastTime); end.Before(least) {
		end = least
	}
	last := end.Add(margin)
	var marking sync.WaitGroup
	defer marking.Wait()
	marked := make(chan struct{})
	marking.Go(func() {
		defer close(marked)
		limited, cancel := context.WithDeadline(ctx, end)
		defer cancel()
		if err := e.mark(limited); err != nil && ctx.Err() == nil {
			e.log.Error("kubernetes: this node goes and still takes pods", "err", err)
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

// event tells of something as far as there is time; it is told in the log as well.
func (e *Evacuator) event(ctx context.Context, about kube.Reference, reason, message string) {
	ctx, cancel := context.WithTimeout(ctx, margin)
	defer cancel()
	err := e.client.Tell(ctx, kube.Event{Name: kube.EventName(about.Name), About: about, Warning: true, Reason: reason, Message: message, Component: "holdfast", Host: e.conf.Node, At: time.Now()})
	if err != nil && !errors.Is(err, context.Canceled) {
		e.log.Debug("kubernetes: an event was not taken", "about", about.Name, "err", err)
	}
}
