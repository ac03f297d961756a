package drain

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
)

// Metrics are the figures of drains.
type Metrics struct {
	steps  *prometheus.HistogramVec
	drains *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_drain_step_seconds",
			Help:    "Duration of a drain by step, in seconds. The step total is the whole drain.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"step"}),
		drains: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_drains_total",
			Help: "Drains of this node by outcome (clean, left).",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{"clean", "left"} { // a rate needs the 0 before the first 1
		m.drains.WithLabelValues(outcome)
	}
	reg.MustRegister(m.steps, m.drains)
	return m
}

// observe records a drain. The steps have a fixed set of names.
func (m *Metrics) observe(r holdfast.DrainReport) {
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
