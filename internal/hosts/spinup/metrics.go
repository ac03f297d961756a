package spinup

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
)

// Metrics are the metrics of all recorded spin-ups. Label values are from fixed
// sets: kind, phase, outcome, cause; never an image or a host.
type Metrics struct {
	rules      Rules
	seconds    *prometheus.HistogramVec
	throughput *prometheus.HistogramVec
	bytes      *prometheus.CounterVec
	judged     *prometheus.CounterVec
	slow       *prometheus.CounterVec
	ended      *prometheus.CounterVec
	pulls      *prometheus.CounterVec
	retries    prometheus.Counter
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer, rules Rules) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{
		rules: rules,
		seconds: r.HistogramVec("holdfast_spinup_phase_seconds",
			"Duration of a spin-up's phase in seconds (download, extract, create, start, ready, total), by kind (session, pull, run, other, pod).",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300}, "phase", "kind"),
		throughput: r.HistogramVec("holdfast_spinup_throughput_mebibytes_per_second",
			"Throughput in MiB/s of pulls that are long enough to judge, by phase (download, extract).",
			[]float64{1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 250, 500, 1000}, "phase"),
		bytes:   r.CounterVec("holdfast_spinup_bytes_total", "Compressed bytes that pulls moved, by phase (download, extract).", "phase"),
		judged:  r.CounterVec("holdfast_spinup_judged_total", "Phases of spin-ups that were judged by a rule.", "phase", "kind"),
		slow:    r.CounterVec("holdfast_spinup_slow_total", "Phases of spin-ups that were slow by their rule.", "phase", "kind"),
		ended:   r.CounterVec("holdfast_spinups_total", "Spin-ups that ended, by kind, outcome (ok, failed, stopped) and cause.", "kind", "outcome", "cause"),
		pulls:   r.CounterVec("holdfast_spinup_pulls_total", "Pulls, by where the image came from (cache, registry, joined, failed).", "from"),
		retries: r.Counter("holdfast_spinup_retries_total", "Restarts of a layer's download by the engine."),
	}
	for _, kind := range Kinds() {
		for _, phase := range Phases() {
			// rate() needs a sample of 0 before the first increment.
			m.judged.WithLabelValues(string(phase), string(kind))
			m.slow.WithLabelValues(string(phase), string(kind))
		}
	}
	return m
}

// Observe counts one spin-up. It may be called from any goroutine.
func (m *Metrics) Observe(r Record) {
	kind := string(r.Kind)
	m.ended.WithLabelValues(kind, string(r.Outcome), string(r.Cause)).Inc()
	for phase, took := range r.Times {
		m.seconds.WithLabelValues(string(phase), kind).Observe(time.Duration(took).Seconds())
	}
	m.seconds.WithLabelValues("total", kind).Observe(time.Duration(r.Took).Seconds())
	for _, v := range m.rules.Judge(r) {
		m.judged.WithLabelValues(string(v.Phase), kind).Inc()
		if v.Slow {
			m.slow.WithLabelValues(string(v.Phase), kind).Inc()
		}
		if v.Phase.IsRate() {
			m.throughput.WithLabelValues(string(v.Phase)).Observe(v.Value)
		}
	}
	if p := r.Pull; p != nil {
		m.pulls.WithLabelValues(p.from()).Inc()
		m.retries.Add(float64(p.Retries))
		if !p.Joined { // otherwise the other pull counts them
			m.bytes.WithLabelValues(string(Download)).Add(float64(p.Download.Bytes))
			m.bytes.WithLabelValues(string(Extract)).Add(float64(p.Extract.Bytes))
		}
	}
}

// from returns where a pull's image came from.
func (p Pull) from() string {
	switch {
	case !p.Done:
		return "failed"
	case p.Cached:
		return "cache"
	case p.Joined:
		return "joined"
	}
	return "registry"
}
