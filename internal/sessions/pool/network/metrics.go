package network

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/pool"
)

// Metrics are the metrics of a Pool.
type Metrics struct {
	pool.Metrics
	reg metric.Registry
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{reg: r, Metrics: pool.Metrics{
		Found: "ready",
		Claims: r.CounterVec("holdfast_network_claims_total",
			"Boots of sessions that asked for a ready network, by outcome (ready, none: the engine created the network during the boot).", "outcome"),
		Making: r.HistogramVec("holdfast_network_make_seconds",
			"Time to create a ready network ahead of need, by outcome (ok, failed).",
			[]float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "outcome"),
	}}
	metric.Start(m.Claims, "ready", "none")
	return m
}

// watch registers gauges for the number of networks in the pool.
func (m *Metrics) watch(p *Pool) {
	metric.GaugeFunc(m.reg, "holdfast_networks_ready", "Ready networks that wait for a session.", func() int { n, _, _ := p.Counts(); return n })
	metric.GaugeFunc(m.reg, "holdfast_networks_target", "Ready networks that the pool keeps while the node is idle.", func() int { _, _, n := p.Counts(); return n })
	metric.GaugeFunc(m.reg, "holdfast_networks_used", "Networks of the pool that sessions use.", func() int { _, n, _ := p.Counts(); return n })
}
