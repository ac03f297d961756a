package node

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
)

// Metrics are the metrics of the agent's requests.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	failures prometheus.Counter
	dropped  prometheus.Counter
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	return &Metrics{
		requests: r.CounterVec("holdfast_kubernetes_requests_total", "Requests to the API server, by verb and status; 0 is no answer.", "verb", "code"),
		seconds:  r.HistogramVec("holdfast_kubernetes_request_seconds", "Time until the API server answered, by verb.", []float64{.005, .02, .1, .5, 2, 10, 30}, "verb"),
		failures: r.Counter("holdfast_kubernetes_report_failures_total", "Reports of this node that failed and were tried again."),
		dropped:  r.Counter("holdfast_kubernetes_events_dropped_total", "Events dropped because too many were queued or the API server refused them."),
	}
}

// Observe implements kube.Options.Observe.
func (m *Metrics) Observe(verb string, code int, took time.Duration) {
	m.requests.WithLabelValues(verb, strconv.Itoa(code)).Inc()
	m.seconds.WithLabelValues(verb).Observe(took.Seconds())
}
