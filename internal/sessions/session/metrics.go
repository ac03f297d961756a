package session

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
)

// Metrics are the metrics of a Manager.
type Metrics struct {
	saves    *prometheus.HistogramVec // by outcome
	restores *prometheus.CounterVec   // by outcome
	suspends *prometheus.HistogramVec // by outcome
	boots    *prometheus.HistogramVec
	kills    *prometheus.CounterVec
	dying    prometheus.Histogram
	snaps    *prometheus.HistogramVec
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		boots: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_session_boot_seconds",
			Help:    "Time of a session's boot by phase (queue, claim, pull, init, create, start, ready, total) and outcome (ok, failed, elsewhere).",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"phase", "outcome"}),
		kills: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_kills_total",
			Help: "Containers to be killed, by outcome (dead, left).",
		}, []string{"outcome"}),
		dying: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "holdfast_kill_seconds",
			Help:    "Time from the order to kill a set of containers until the last was seen dead.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
	}
	m.snaps = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "holdfast_session_snapshot_seconds",
		Help:    "Time of a snapshot command after its session ended, by outcome (ok, failed).",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"outcome"})
	for _, outcome := range []string{"dead", "left"} { // a rate needs the 0 before the first 1
		m.kills.WithLabelValues(outcome)
	}
	for _, outcome := range []string{"ok", "failed", "elsewhere"} {
		m.boots.WithLabelValues("total", outcome)
	}
	for _, outcome := range []string{"ok", "failed"} {
		m.snaps.WithLabelValues(outcome)
	}
	m.saves = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "holdfast_session_save_seconds",
		Help:    "Time from the order to save a container that leaves until its successor had the image, by outcome (ok, failed, left: not enough time or space).",
		Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"outcome"})
	m.restores = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_session_restores_total",
		Help: "Containers started with an image of their session's previous epoch, by outcome (ok, failed: a fresh one was started).",
	}, []string{"outcome"})
	m.suspends = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "holdfast_session_suspend_seconds",
		Help:    "Time from the order to suspend a session until its image was kept, by outcome (ok, failed: the session ended without its memory).",
		Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"outcome"})
	for _, outcome := range []string{"ok", "failed"} {
		m.suspends.WithLabelValues(outcome)
		m.saves.WithLabelValues(outcome)
		m.restores.WithLabelValues(outcome)
	}
	m.saves.WithLabelValues("left")
	reg.MustRegister(m.boots, m.kills, m.dying, m.snaps, m.saves, m.restores, m.suspends)
	return m
}

// outcomeOf is the label for an operation's result.
func outcomeOf(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

func (m *Metrics) booted(phases map[string]time.Duration, total time.Duration, err error) {
	outcome := "ok"
	switch {
	case elsewhere(err):
		outcome = "elsewhere"
	case err != nil:
		outcome = "failed"
	}
	for phase, took := range phases {
		m.boots.WithLabelValues(phase, outcome).Observe(took.Seconds())
	}
	m.boots.WithLabelValues("total", outcome).Observe(total.Seconds())
}

func (m *Metrics) killed(r holdfast.KillReport) {
	m.kills.WithLabelValues("dead").Add(float64(len(r.Dead)))
	m.kills.WithLabelValues("left").Add(float64(len(r.Left)))
	m.dying.Observe(time.Duration(r.Took).Seconds())
}
