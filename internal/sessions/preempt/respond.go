package preempt

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/drain"
)

// noticeMargin is the part of a notice's time that is reserved for the steps after the
// drain.
const noticeMargin = time.Second

// Responder drains the node when its host will end. The agent continues. If the host
// stays, the node accepts sessions again.
type Responder struct {
	Drainer *drain.Drainer
	Options drain.Options // of a drain without a deadline
	Metrics *Metrics
	Log     *slog.Logger
}

// Run acts on the notices of the sources until ctx is done. It returns nil.
func (r *Responder) Run(ctx context.Context, sources []Source) error {
	Run(ctx, sources, func(n Notice) { r.respond(ctx, n) }, r.Log)
	return nil
}

func (r *Responder) respond(ctx context.Context, n Notice) {
	r.Log.Warn("notice", "source", n.Source, "kind", n.Kind, "reason", n.Reason, "deadline", n.Deadline)
	r.Metrics.notices.WithLabelValues(n.Source, string(n.Kind)).Inc()
	switch n.Kind {
	case Rebalance:
		r.Drainer.StopClaiming()
	case Withdrawn:
		if err := r.Drainer.ClaimAgain(); err != nil {
			r.Log.Info("the notice is withdrawn, and the node accepts no sessions", "err", err)
		}
	case Terminate:
		o := r.Options
		o.Budget = noticeBudget(o.Budget, n.Deadline, time.Now())
		r.Drainer.Drain(context.WithoutCancel(ctx), o, nil) // the Drainer logs its end
		if err := n.Done(ctx); err != nil {
			r.Log.Warn("the source of a notice cannot be told that the node is drained", "source", n.Source, "err", err)
		}
	}
}

// noticeBudget returns how long a drain may take until the deadline of a notice. A zero
// deadline is unknown.
func noticeBudget(most time.Duration, deadline, now time.Time) time.Duration {
	if deadline.IsZero() {
		return most
	}
	return min(most, max(drain.LeastBudget, deadline.Sub(now)-noticeMargin))
}

// Metrics are the metrics of notices.
type Metrics struct {
	notices *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{notices: r.CounterVec("holdfast_preemption_notices_total",
		"Preemption notices for this host, by source and kind (terminate, rebalance, withdrawn).", "source", "kind")}
	return m
}
