package drain

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/metric"
)

// Metrics are the figures of drains.
type Metrics struct {
	steps  *prometheus.HistogramVec
	drains *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{
		steps: r.HistogramVec("holdfast_drain_step_seconds",
			"Duration of a drain by step, in seconds. The step total is the whole drain.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "step"),
		drains: r.CounterVec("holdfast_drains_total", "Drains of this node by outcome (clean, left).", "outcome"),
	}
	metric.Start(m.drains, "clean", "left")
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
