package gc

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
)

// Metrics are the metrics of a Collector. Label values are from fixed sets.
type Metrics struct {
	deletions *prometheus.CounterVec
	locked    *prometheus.HistogramVec
	forced    prometheus.Counter
	files     prometheus.Counter
	bytes     prometheus.Counter
	suspend   prometheus.Counter
	cycles    *prometheus.CounterVec
	used      *prometheus.GaugeVec
	level     *prometheus.GaugeVec
	spinups   *prometheus.HistogramVec
	slow      *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{
		deletions: r.CounterVec("holdfast_gc_deletions_total", "Planned deletions, by kind and result (deleted, skipped).", "kind", "result"),
		locked: r.HistogramVec("holdfast_gc_locked_seconds",
			"Duration of the engine's removal calls in seconds, by whether the files were linked into the trash before.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "linked"),
		forced:  r.Counter("holdfast_gc_forced_total", "Deletions during spin-ups because the disk was critically full."),
		files:   r.Counter("holdfast_gc_freed_files_total", "Files removed from the trash."),
		bytes:   r.Counter("holdfast_gc_freed_bytes_total", "Bytes freed by removing files from the trash."),
		suspend: r.Counter("holdfast_gc_suspended_seconds_total", "Time that deletions waited for spin-ups, in seconds."),
		cycles:  r.CounterVec("holdfast_gc_cycles_total", "Collection cycles, by trigger (threshold, schedule, request) and result (ok, failed).", "trigger", "result"),
		used:    r.GaugeVec("holdfast_gc_disk_used_ratio", "Used fraction of the data root's file system, by resource (bytes, inodes).", "of"),
		level:   r.GaugeVec("holdfast_gc_disk_level", "1 for the current level of disk use, 0 for the others (ok, between, high, critical).", "level"),
		spinups: r.HistogramVec("holdfast_gc_spinup_seconds",
			"Duration of spin-ups in seconds, by whether a deletion ran during the spin-up.",
			[]float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300}, "beside_deletion"),
		slow: r.CounterVec("holdfast_gc_slow_spinups_total", "Slow spin-ups, by whether a deletion ran during the spin-up.", "beside_deletion"),
	}
	metric.Start(m.slow, "yes", "no")
	return m
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (m *Metrics) deletion(o Outcome, result string) {
	m.deletions.WithLabelValues(string(o.Kind), result).Inc()
	if result == "deleted" {
		m.locked.WithLabelValues(yes(o.Linked > 0)).Observe(time.Duration(o.Locked).Seconds())
		if o.Forced {
			m.forced.Inc()
		}
	}
}

func (m *Metrics) freed(f freed) {
	m.files.Add(float64(f.Files))
	m.bytes.Add(float64(f.Bytes))
}

func (m *Metrics) suspended(d time.Duration) { m.suspend.Add(d.Seconds()) }

func (m *Metrics) cycle(c Cycle) {
	result := "ok"
	if c.Error != "" {
		result = "failed"
	}
	m.cycles.WithLabelValues(string(c.Trigger), result).Inc()
}

func (m *Metrics) disk(d Disk, at Level) {
	if d.Total > 0 {
		m.used.WithLabelValues("bytes").Set(float64(d.Used()) / float64(d.Total))
	}
	if d.Inodes > 0 {
		m.used.WithLabelValues("inodes").Set(float64(d.Inodes-d.FreeInodes) / float64(d.Inodes))
	}
	for _, l := range []Level{Roomy, Between, Pressed, Critical} {
		v := 0.0
		if l == at {
			v = 1
		}
		m.level.WithLabelValues(string(l)).Set(v)
	}
}

func (m *Metrics) spinup(beside, slow bool, took time.Duration) {
	m.spinups.WithLabelValues(yes(beside)).Observe(took.Seconds())
	if slow {
		m.slow.WithLabelValues(yes(beside)).Inc()
	}
}
