package container

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/pool"
)

// Metrics are the metrics of a Pool.
type Metrics struct {
	reg    metric.Registry
	claims *prometheus.CounterVec
	making *prometheus.HistogramVec
}

// NewMetrics creates the metrics and registers them. The configuration bounds the
// number of templates.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{
		reg: r,
		claims: r.CounterVec("holdfast_warm_claims_total",
			"Sessions that asked for a warm container, by template and outcome (warm, none: it booted).", "template", "outcome"),
		making: r.HistogramVec("holdfast_warm_make_seconds",
			"Time to create a warm container ahead of need, by template and outcome (ok, failed).",
			[]float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "template", "outcome"),
	}
	return m
}

// watch registers gauges for the number of containers in the pool, and sets the
// counters of claims to 0.
func (m *Metrics) watch(p *Pool) {
	for i, k := range p.kinds {
		for _, outcome := range []string{"warm", "none"} {
			m.claims.WithLabelValues(k.Name, outcome)
		}
		for name, c := range map[string]struct {
			help  string
			value func(Count) int
		}{
			"holdfast_warm_ready": {"Warm containers that wait for a session.", func(c Count) int { return c.Ready }},
			"holdfast_warm_want":  {"Warm containers that the pool aims for, by demand.", func(c Count) int { return c.Want }},
		} {
			m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: name, Help: c.help, ConstLabels: prometheus.Labels{"template": k.Name},
			}, func() float64 { return float64(c.value(p.Counts()[i])) }))
		}
	}
}

func (m *Metrics) claimed(template string, warm bool) {
	outcome := "none"
	if warm {
		outcome = "warm"
	}
	m.claims.WithLabelValues(template, outcome).Inc()
}

func (m *Metrics) made(template string, took time.Duration, err error) {
	pool.ObserveMake(m.making, took, err, template)
}
