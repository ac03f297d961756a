package pool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ObserveMake adds the time that making a pool's item took to the histogram, with the
// outcome ok or failed as the last label.
func ObserveMake(h *prometheus.HistogramVec, took time.Duration, err error, labels ...string) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	h.WithLabelValues(append(labels, outcome)...).Observe(took.Seconds())
}
