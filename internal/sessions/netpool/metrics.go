package netpool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the figures of a Pool.
type Metrics struct {
	reg    prometheus.Registerer
	claims *prometheus.CounterVec
	making *prometheus.HistogramVec
}

// NewMetrics makes the figures and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		reg: reg,
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_network_claims_total",
			Help: "Boots of sessions that asked for a ready network, by outcome (ready, none: it got its network as it booted).",
		}, []string{"outcome"}),
		making: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_network_make_seconds",
			Help:    "Time to make a network ready, ahead of need, by outcome (ok, failed).",
			Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{"ready", "none"} {
		m.claims.WithLabelValues(outcome)
	}
	reg.MustRegister(m.claims, m.making)
	return m
}

// watch shows how many networks a pool has.
func (m *Metrics) watch(p *Pool) {
	gauge := func(name, help string, value func() int) {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
	}
	gauge("holdfast_networks_ready", "Networks that wait for a session.", func() int { n, _, _ := p.Counts(); return n })
	gauge("holdfast_networks_kept", "Networks that are kept ready when all is quiet.", func() int { _, _, n := p.Counts(); return n })
	gauge("holdfast_networks_used", "Networks that a session has that waited for it.", func() int { _, n, _ := p.Counts(); return n })
}

func (m *Metrics) claimed(ready bool) {
	outcome := "none"
	if ready {
		outcome = "ready"
	}
	m.claims.WithLabelValues(outcome).Inc()
}

func (m *Metrics) made(took time.Duration, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.making.WithLabelValues(outcome).Observe(took.Seconds())
}
