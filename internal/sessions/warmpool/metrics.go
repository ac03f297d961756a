package warmpool

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

// NewMetrics makes the figures and registers them. Templates are in the
// configuration, so their number is bounded.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		reg: reg,
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_warm_claims_total",
			Help: "Sessions that asked for a warm container, by template and outcome (warm, none: it booted).",
		}, []string{"template", "outcome"}),
		making: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_warm_make_seconds",
			Help:    "Time to make a container warm, ahead of need, by template and outcome (ok, failed).",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"template", "outcome"}),
	}
	reg.MustRegister(m.claims, m.making)
	return m
}

// watch shows how many containers a pool has, and that nobody has claimed one yet.
func (m *Metrics) watch(p *Pool) {
	for i, k := range p.kinds {
		for _, outcome := range []string{"warm", "none"} {
			m.claims.WithLabelValues(k.Name, outcome)
		}
		for name, c := range map[string]struct {
			help  string
			value func(Count) int
		}{
			"holdfast_warm_ready": {"Containers that are warm.", func(c Count) int { return c.Ready }},
			"holdfast_warm_want":  {"Containers that are wanted warm, by the demand.", func(c Count) int { return c.Want }},
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
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.making.WithLabelValues(template, outcome).Observe(took.Seconds())
}
