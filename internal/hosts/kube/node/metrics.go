package node

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of the agent's requests. A nil *Metrics counts nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	failures prometheus.Counter
	dropped  prometheus.Counter
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_kubernetes_requests_total", Help: "Requests to the API server, by verb and status; 0 is no answer.",
		}, []string{"verb", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "holdfast_kubernetes_request_seconds", Help: "Time until the API server answered, by verb.",
			Buckets: []float64{.005, .02, .1, .5, 2, 10, 30},
		}, []string{"verb"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_kubernetes_report_failures_total", Help: "Reports of this node that failed and were tried again.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_kubernetes_events_dropped_total", Help: "Events dropped because too many were queued or the API server refused them.",
		}),
	}
	r.MustRegister(m.requests, m.seconds, m.failures, m.dropped)
	return m
}

// Observe implements kube.Options.Observe.
func (m *Metrics) Observe(verb string, code int, took time.Duration) {
	m.requests.WithLabelValues(verb, strconv.Itoa(code)).Inc()
	m.seconds.WithLabelValues(verb).Observe(took.Seconds())
}

func (m *Metrics) fail() {
	if m != nil {
		m.failures.Inc()
	}
}

func (m *Metrics) drop() {
	if m != nil {
		m.dropped.Inc()
	}
}
