package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/sessions/gateway/reattach"
)

// Metrics are the gateway's collectors.
type Metrics struct {
	connects *prometheus.CounterVec // by kind
	errors   *prometheus.CounterVec // by reason
	parked   prometheus.Gauge
	parkTime prometheus.Histogram
	upgraded prometheus.Gauge
	kept     *prometheus.CounterVec // by outcome
	keptTime prometheus.Histogram

	forwarded           *prometheus.CounterVec // by result
	peerForwardRefusals *prometheus.CounterVec // by reason
}

// NewMetrics creates the collectors and registers them with reg. It panics if
// they are already registered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		connects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_gateway_connects_total",
			Help: "Requests for a session, by kind: request or upgrade.",
		}, []string{"kind"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_gateway_connect_errors_total",
			Help: "Requests that the gateway answered with an error because it could not serve them, by reason.",
		}, []string{"reason"}),
		parked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_gateway_parked_requests",
			Help: "Requests that currently wait for their session.",
		}),
		parkTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:                        "holdfast_gateway_park_seconds",
			Help:                        "Time that requests waited for their session, in seconds. A request for a ready session falls into the first bucket.",
			Buckets:                     []float64{.001, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60},
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}),
		upgraded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_gateway_upgraded_connections",
			Help: "Open upgraded connections (mostly WebSockets), including those that other nodes forward.",
		}),
		kept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_gateway_kept_sockets_total",
			Help: "WebSockets of templates with websocket: keep that lost their server, by outcome.",
		}, []string{"outcome"}),
		keptTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:                        "holdfast_gateway_kept_socket_seconds",
			Help:                        "Time that kept WebSockets had no server, in seconds.",
			Buckets:                     []float64{.05, .1, .25, .5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60},
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}),
		forwarded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_gateway_forwarded_total",
			Help: "Requests sent to other nodes, by result. Each try counts.",
		}, []string{"result"}),
		peerForwardRefusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_gateway_peer_forward_refusals_total",
			Help: "Requests from other nodes that were refused before any byte was sent to the session, by reason.",
		}, []string{"reason"}),
	}
	// Known label values start at 0, so that a rate sees the first error.
	m.connects.WithLabelValues("request")
	m.connects.WithLabelValues("upgrade")
	for _, r := range reasons {
		m.errors.WithLabelValues(r)
	}
	for _, o := range reattach.Outcomes() {
		m.kept.WithLabelValues(string(o))
	}
	for _, r := range results {
		m.forwarded.WithLabelValues(r)
	}
	for _, r := range refusals {
		m.peerForwardRefusals.WithLabelValues(r)
	}
	reg.MustRegister(m.connects, m.errors, m.parked, m.parkTime, m.upgraded, m.kept, m.keptTime, m.forwarded, m.peerForwardRefusals)
	return m
}

// handover counts the outcome of a kept socket that lost its server.
func (m *Metrics) handover(o reattach.Outcome, took time.Duration) {
	m.kept.WithLabelValues(string(o)).Inc()
	if o == reattach.Kept {
		m.keptTime.Observe(took.Seconds())
	}
}
