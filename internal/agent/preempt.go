package agent

import (
	"context"
	"time"

	"holdfast/internal/sessions/drain"
	"holdfast/internal/sessions/preempt"
)

// Of the time that a notice leaves, noticeMargin is kept for what comes after
// the drain; even of a deadline that has passed, leastBudget is tried.
const (
	noticeMargin = time.Second
	leastBudget  = 2 * time.Second
)

// listenForNotices hears that the host goes away, and acts on it, until ctx is
// done.
func (a *Agent) listenForNotices(ctx context.Context) error {
	preempt.Run(ctx, a.cfg.Preempt.Sources(), func(n preempt.Notice) { a.heed(ctx, n) }, a.log)
	return nil
}

// heed acts on one notice. The agent does not end: the host will end it, and if
// the host stays after all, its node takes sessions again.
func (a *Agent) heed(ctx context.Context, n preempt.Notice) {
	a.log.Warn("notice", "source", n.Source, "kind", n.Kind, "reason", n.Reason, "deadline", n.Deadline)
	a.drains.notices.WithLabelValues(n.Source, string(n.Kind)).Inc()
	switch n.Kind {
	case preempt.Rebalance:
		a.sessions.StopClaiming()
		a.lease.Changed()
	case preempt.Over:
		if err := a.claimAgain(); err != nil {
			a.log.Info("the notice is over", "err", err)
		}
	case preempt.Terminate:
		o := drain.Options{Budget: noticeBudget(a.cfg.Drain.Budget, n.Deadline, time.Now()), Quiet: a.cfg.Drain.Quiet}
		a.drain(context.WithoutCancel(ctx), o, nil) // its end is logged
		if err := n.Done(ctx); err != nil {
			a.log.Warn("telling the source of a notice that the node is drained", "source", n.Source, "err", err)
		}
	}
}

// noticeBudget is how long a drain may take that has to be over by a deadline;
// zero is none.
func noticeBudget(most time.Duration, deadline, now time.Time) time.Duration {
	if deadline.IsZero() {
		return most
	}
	return min(most, max(leastBudget, deadline.Sub(now)-noticeMargin))
}
