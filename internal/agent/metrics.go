package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
)

// drainMetrics are the figures of drains.
type drainMetrics struct {
	steps   *prometheus.HistogramVec
	drains  *prometheus.CounterVec
	notices *prometheus.CounterVec
}

func newDrainMetrics(reg prometheus.Registerer) *drainMetrics {
	m := &drainMetrics{
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_drain_step_seconds",
			Help:    "Time of a drain by step; the step total is the whole.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"step"}),
		drains: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_drains_total",
			Help: "Drains of this node by outcome (clean, left).",
		}, []string{"outcome"}),
	}
	m.notices = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_preemption_notices_total",
		Help: "Notices that this host goes away, by source and kind (terminate, rebalance, over).",
	}, []string{"source", "kind"})
	for _, outcome := range []string{"clean", "left"} { // a rate needs the 0 before the first 1
		m.drains.WithLabelValues(outcome)
	}
	reg.MustRegister(m.steps, m.drains, m.notices)
	return m
}

// observe takes a drain in. The steps' names are a fixed few.
func (m *drainMetrics) observe(r holdfast.DrainReport) {
	for _, s := range r.Steps {
		m.steps.WithLabelValues(s.Name).Observe(time.Duration(s.Took).Seconds())
	}
	m.steps.WithLabelValues("total").Observe(time.Duration(r.Took).Seconds())
	outcome := "clean"
	if !r.Clean() {
		outcome = "left"
	}
	m.drains.WithLabelValues(outcome).Inc()
}
