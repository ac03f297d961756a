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
		Found: "joined",
		Claims: r.CounterVec("holdfast_network_claims_total",
			"Containers on Docker that asked for a network of Holdfast's, by outcome (joined, none: the engine created the network during the start).", "outcome"),
		Making: r.HistogramVec("holdfast_network_make_seconds",
			"Time to create a network of Holdfast's, ahead of need or in a boot, by outcome (ok, failed).",
			[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}, "outcome"),
	}}
	metric.Start(m.Claims, "joined", "none")
	return m
}

// watch registers gauges for the numbers of networks and of holders.
func (m *Metrics) watch(p *Pool) {
	gauge := func(name, help string, value func(Counts) int) {
		metric.GaugeFunc(m.reg, name, help, func() int { return value(p.Counts()) })
	}
	gauge("holdfast_networks_ready", "Networks of Holdfast's that wait for a container.", func(c Counts) int { return c.Ready })
	gauge("holdfast_networks_target", "Networks of Holdfast's that the pool keeps ready while the node is idle.", func(c Counts) int { return c.Target })
	gauge("holdfast_networks_used", "Networks of Holdfast's that sessions and warm containers use.", func(c Counts) int { return c.Used })
	gauge("holdfast_network_holders", "Containers by way of which others join networks of Holdfast's.", func(c Counts) int { return c.Holders })
	gauge("holdfast_network_holders_free", "Containers by way of which others join networks of Holdfast's, that no boot uses.", func(c Counts) int { return c.Free })
}
