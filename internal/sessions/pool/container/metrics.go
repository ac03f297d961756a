package container

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

// NewMetrics creates the metrics and registers them. The configuration bounds the
// number of templates.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	return &Metrics{reg: r, Metrics: pool.Metrics{
		Found: "warm",
		Claims: r.CounterVec("holdfast_warm_claims_total",
			"Sessions that asked for a warm container, by template and outcome (warm, none: it booted).", "template", "outcome"),
		Making: r.HistogramVec("holdfast_warm_make_seconds",
			"Time to create a warm container ahead of need, by template and outcome (ok, failed).",
			[]float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "template", "outcome"),
	}}
}

// watch registers gauges for the number of containers in the pool, and sets the
// counters of claims to 0.
func (m *Metrics) watch(p *Pool) {
	for i, k := range p.kinds {
		for _, outcome := range []string{"warm", "none"} {
			m.Claims.WithLabelValues(k.Name, outcome)
		}
		for name, c := range map[string]struct {
			help  string
			value func(Count) int
		}{
			"holdfast_warm_ready":  {"Warm containers that wait for a session.", func(c Count) int { return c.Ready }},
			"holdfast_warm_target": {"Warm containers that the pool aims for, by demand.", func(c Count) int { return c.Want }},
		} {
			m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: name, Help: c.help, ConstLabels: prometheus.Labels{"template": k.Name},
			}, func() float64 { return float64(c.value(p.Counts()[i])) }))
		}
	}
}
