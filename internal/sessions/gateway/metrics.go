package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/gateway/reattach"
)

// Metrics are the gateway's collectors.
type Metrics struct {
	connects *prometheus.CounterVec // by kind
	plain    prometheus.Counter     // requests of connects
	errors   *prometheus.CounterVec // by reason
	parked   prometheus.Gauge
	parkTime prometheus.Histogram
	upgraded prometheus.Gauge
	imported *prometheus.CounterVec // by kind
	tcp      prometheus.Gauge
	kept     *prometheus.CounterVec // by outcome

	slowReaders prometheus.Counter
	keptTime    prometheus.Histogram
	sleeping    prometheus.Gauge

	forwarded           *prometheus.CounterVec // by result
	peerForwardRefusals *prometheus.CounterVec // by reason
}

// NewMetrics creates the collectors and registers them with reg. It panics if
// they are already registered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{
		connects: r.CounterVec("holdfast_gateway_connects_total", "Requests for a session, by kind: request, upgrade, or tcp for a connection to a TCP address.", "kind"),
		errors: r.CounterVec("holdfast_gateway_connect_errors_total",
			"Requests that the gateway answered with an error because it could not serve them, by reason.", "reason"),
		parked: r.Gauge("holdfast_gateway_parked_requests", "Requests that currently wait for their session."),
		parkTime: r.NativeHistogram("holdfast_gateway_park_seconds",
			"Time that requests waited for their session, in seconds. A request for a ready session falls into the first bucket.",
			[]float64{.001, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60}),
		upgraded: r.Gauge("holdfast_gateway_upgraded_connections", "Open upgraded connections (mostly WebSockets), including those that other nodes forward."),
		tcp:      r.Gauge("holdfast_gateway_tcp_connections", "Open connections to TCP addresses of templates, including those that wait for their session."),
		imported: r.CounterVec("holdfast_gateway_taken_over_connections_total",
			"Connections that the agent before an upgrade left to this one, by kind: kept for WebSockets of templates with websocket: keep, relay for other upgraded connections, tcp for connections to TCP addresses.", "kind"),
		slowReaders: r.Counter("holdfast_gateway_slow_readers_total", "Responses that the gateway ended because their client accepted no more of them."),
		kept:        r.CounterVec("holdfast_gateway_kept_sockets_total", "WebSockets of templates with websocket: keep that lost their server, by outcome.", "outcome"),
		keptTime: r.NativeHistogram("holdfast_gateway_kept_socket_seconds",
			"Time that kept WebSockets had no server, in seconds.",
			[]float64{.05, .1, .25, .5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60}),
		sleeping:  r.Gauge("holdfast_gateway_sleeping_sockets", "Open WebSockets whose session is suspended, including those that other nodes forward."),
		forwarded: r.CounterVec("holdfast_gateway_forwarded_total", "Requests sent to other nodes, by result. Each try counts.", "result"),
		peerForwardRefusals: r.CounterVec("holdfast_gateway_peer_forward_refusals_total",
			"Requests from other nodes that were refused before any byte was sent to the session, by reason.", "reason"),
	}
	// Known label values start at 0, so that a rate sees the first error.
	metric.Start(m.connects, "request", "upgrade", "tcp")
	m.plain = m.connects.WithLabelValues("request")
	metric.Start(m.errors, reasons()...)
	metric.Start(m.imported, exportKinds...)
	for _, o := range reattach.Outcomes() {
		m.kept.WithLabelValues(string(o))
	}
	metric.Start(m.forwarded, results...)
	metric.Start(m.peerForwardRefusals, refusals...)
	return m
}

// handover counts the outcome of a kept socket that lost its server.
func (m *Metrics) handover(o reattach.Outcome, took time.Duration) {
	m.kept.WithLabelValues(string(o)).Inc()
	if o == reattach.Kept {
		m.keptTime.Observe(took.Seconds())
	}
}
