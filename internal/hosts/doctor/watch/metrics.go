package watch

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/metric"
)

// Metrics holds the metrics of a Watch. Their labels have a bounded set of values: names
// of facts and of rules, severities.
type Metrics struct {
	value  map[fact.Unit]*prometheus.GaugeVec
	found  *prometheus.GaugeVec
	events *prometheus.CounterVec
	rounds prometheus.Counter
	cpu    prometheus.Counter
	bursts *prometheus.CounterVec
	every  prometheus.Gauge
	known  map[string]fact.Unit // the exported facts and their units
}

// NewMetrics creates and registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	gauge := func(name, help string) *prometheus.GaugeVec { return r.GaugeVec(name, help, "fact") }
	const of = " The host's, or the largest of its parts'."
	m := &Metrics{
		value: map[fact.Unit]*prometheus.GaugeVec{
			fact.Count:     gauge("holdfast_doctor_fact_number", "Facts that are counts."+of),
			fact.Bytes:     gauge("holdfast_doctor_fact_bytes", "Facts in bytes."+of),
			fact.Seconds:   gauge("holdfast_doctor_fact_seconds", "Facts that are times."+of),
			fact.Share:     gauge("holdfast_doctor_fact_ratio", "Facts that are shares, 0 to 1; over 1 if several subjects count together."+of),
			fact.MiBPerSec: gauge("holdfast_doctor_fact_bytes_per_second", "Facts that are bytes per second."+of),
			fact.PerSecond: gauge("holdfast_doctor_fact_per_second", "Facts that are rates."+of),
		},
		found:  r.GaugeVec("holdfast_doctor_findings", "Findings that are open, by rule and severity (notice, warning, critical).", "rule", "severity"),
		events: r.CounterVec("holdfast_doctor_finding_events_total", "Findings that began, changed or ended, by rule.", "rule", "event"),
		rounds: r.Counter("holdfast_doctor_rounds_total", "Rounds of the doctor's continuous examination."),
		cpu:    r.Counter("holdfast_doctor_cpu_seconds_total", "CPU time of the doctor's continuous examination, in seconds."),
		bursts: r.CounterVec("holdfast_doctor_bursts_total", "Bursts of the doctor, by reason (regular, suspicion).", "why"),
		every:  r.Gauge("holdfast_doctor_round_interval_seconds", "Time between two rounds, in seconds. It is longer than configured if a round costs much CPU time."),
		known:  make(map[string]fact.Unit),
	}
	m.open(nil)
	for _, r := range rule.All() { // a rate needs the 0 before the first 1
		m.events.WithLabelValues(r.Name, string(Began))
	}
	return m
}

// facts exports the facts of a round and removes those without a current value.
func (m *Metrics) facts(all []fact.Fact) {
	units := fact.UnitOf(all)
	sum := fact.Summary(all)
	for name := range m.known {
		if _, ok := sum[name]; !ok {
			m.value[m.known[name]].DeleteLabelValues(label(name))
			delete(m.known, name)
		}
	}
	for name, v := range sum {
		unit := units[name]
		switch unit {
		case fact.Millis:
			unit, v = fact.Seconds, v/1000
		case fact.MiBPerSec:
			v *= 1 << 20
		}
		g, ok := m.value[unit]
		if !ok {
			continue
		}
		g.WithLabelValues(label(name)).Set(v)
		m.known[name] = unit
	}
}

func label(name string) string { return strings.ReplaceAll(name, ".", "_") }

func (m *Metrics) open(list []Open) {
	count := make(map[[2]string]float64)
	for _, r := range rule.All() { // an ended finding is 0 without a gap
		for _, s := range []rule.Severity{rule.Notice, rule.Warning, rule.Critical} {
			count[[2]string{r.Name, string(s)}] = 0
		}
	}
	for _, o := range list {
		count[[2]string{o.Rule, string(o.Severity)}]++
	}
	for k, n := range count {
		m.found.WithLabelValues(k[0], k[1]).Set(n)
	}
}

func (m *Metrics) event(e Event) {
	m.events.WithLabelValues(e.Finding.Rule, string(e.Kind)).Inc()
}

func (m *Metrics) round(cpu, every time.Duration) {
	m.rounds.Inc()
	m.cpu.Add(cpu.Seconds())
	m.every.Set(every.Seconds())
}

func (m *Metrics) burst(why string, cpu time.Duration) {
	if why != regularBurst {
		why = "suspicion"
	}
	m.bursts.WithLabelValues(why).Inc()
	m.cpu.Add(cpu.Seconds())
}
