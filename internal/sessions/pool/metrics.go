package pool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics that every pool has.
type Metrics struct {
	Claims *prometheus.CounterVec   // the last label is the outcome: Found or none
	Making *prometheus.HistogramVec // the last label is the outcome: ok or failed
	Found  string
}

// Claimed counts a claim.
func (m *Metrics) Claimed(found bool, labels ...string) {
	outcome := "none"
	if found {
		outcome = m.Found
	}
	m.Claims.WithLabelValues(append(labels, outcome)...).Inc()
}

// Made observes the time that making an item took.
func (m *Metrics) Made(took time.Duration, err error, labels ...string) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.Making.WithLabelValues(append(labels, outcome)...).Observe(took.Seconds())
}
