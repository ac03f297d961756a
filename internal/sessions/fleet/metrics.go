package fleet

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/metric"
)

// Metrics are the metrics of a Fleet.
type Metrics struct {
	peerRequests *prometheus.CounterVec
	placements   *prometheus.CounterVec
	handovers    *prometheus.CounterVec
	storeReads   *prometheus.CounterVec
	sessions     prometheus.Gauge
	lag          prometheus.Histogram
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{
		peerRequests: r.CounterVec("holdfast_fleet_peer_requests_total",
			"Requests to other nodes for a session, by result (ok, elsewhere, draining, busy, boot, stopped, not_found, store, engine, internal, unreachable, canceled).", "result"),
		placements: r.CounterVec("holdfast_fleet_placements_total",
			"Placements of sessions without an owner, by the node found (here, there, none).", "where"),
		handovers: r.CounterVec("holdfast_fleet_handovers_total",
			"Sessions that other nodes announced to this one, by what became of them (expected, claimed, elsewhere, failed, expired).", "event"),
		storeReads: r.CounterVec("holdfast_fleet_store_reads_total",
			"Session records read from the store instead of the cache, by result (found, gone, failed).", "result"),
		sessions: r.Gauge("holdfast_fleet_sessions", "Session records that this node knows of."),
		lag: r.Histogram("holdfast_fleet_watch_lag_seconds",
			"Time from a claim of this node until its watch reported the claim, including the write.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}),
	}
	return m
}

func (m *Metrics) storeRead(err error) {
	result := "found"
	switch {
	case errors.Is(err, holdfast.ErrNotFound):
		result = "gone"
	case err != nil:
		result = "failed"
	}
	m.storeReads.WithLabelValues(result).Inc()
}
