package session

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/freeze"
)

// Metrics are the metrics of a Manager.
type Metrics struct {
	saves    *prometheus.HistogramVec // by outcome
	restores *prometheus.CounterVec   // by outcome
	suspends *prometheus.HistogramVec // by outcome
	boots    *prometheus.HistogramVec
	kills    *prometheus.CounterVec
	dying    prometheus.Histogram
	disowned prometheus.Counter
	snaps    *prometheus.HistogramVec

	interrupted *prometheus.CounterVec // by outcome
	children    *prometheus.CounterVec // by outcome

	sleeps *prometheus.CounterVec // by outcome
	wakes  *prometheus.CounterVec // by reason
	waking prometheus.Histogram
	count  atomic.Pointer[Manager] // whose sleeping sessions are counted
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{
		boots: r.HistogramVec("holdfast_session_boot_seconds",
			"Time of a session's boot by phase (queue, claim, pull, disk, init, create, start, ready, total) and outcome (ok, failed, elsewhere).",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}, "phase", "outcome"),
		kills: r.CounterVec("holdfast_kills_total", "Containers to be killed, by outcome (dead, left).", "outcome"),
		dying: r.Histogram("holdfast_kill_seconds",
			"Time from the order to kill a set of containers until the last was seen dead.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}),
	}
	m.snaps = r.HistogramVec("holdfast_session_snapshot_seconds",
		"Time of a snapshot command after its session ended, by outcome (ok, failed).",
		[]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "outcome")
	m.disowned = r.Counter("holdfast_sessions_disowned_total", "Sessions that were ended because their record in the store was gone or belonged to another claim.")
	metric.Start(m.kills, "dead", "left")
	for _, outcome := range []string{"ok", "failed", "elsewhere"} {
		m.boots.WithLabelValues("total", outcome)
	}
	metric.Start(m.snaps, "ok", "failed")
	m.saves = r.HistogramVec("holdfast_session_save_seconds",
		"Time from the order to save a container that leaves until its successor had the image, by outcome (ok, failed, left: not enough time or space).",
		[]float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "outcome")
	m.restores = r.CounterVec("holdfast_session_restores_total",
		"Containers started with an image of their session's previous epoch, by outcome (ok, failed: a fresh one was started).", "outcome")
	m.suspends = r.HistogramVec("holdfast_session_suspend_seconds",
		"Time from the order to suspend a session until its image was kept, by outcome (ok, failed: the session ended without its memory).",
		[]float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "outcome")
	m.interrupted = r.CounterVec("holdfast_session_saves_interrupted_total",
		"Sessions whose agent ended while it saved their memory, by what the next agent of the node found (complete: a complete image; lost: the session boots fresh).", "outcome")
	m.children = r.CounterVec("holdfast_session_children_total",
		"Boots of sessions from the memory of another one, by outcome (ok, failed).", "outcome")
	metric.Start(m.children, "ok", "failed")
	m.sleeps = r.CounterVec("holdfast_session_sleeps_total",
		"Sessions that were not used and were to be frozen, by outcome (asleep; used: a use came in between; failed).", "outcome")
	m.wakes = r.CounterVec("holdfast_session_wakes_total",
		"Sleeping and suspended sessions that continued, by reason (request; websocket, stream, forward: data on an open connection; exec; timer).", "reason")
	m.waking = r.Histogram("holdfast_session_wake_seconds",
		"Time to thaw the container of a sleeping session.",
		[]float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .1, 1})
	metric.GaugeFunc(r, "holdfast_sessions_asleep", "Sessions of this node that sleep: their containers are frozen.", func() int {
		if of := m.count.Load(); of != nil {
			return of.asleep()
		}
		return 0
	})
	metric.Start(m.sleeps, "asleep", "used", "failed")
	for _, why := range holdfast.WakeReasons() {
		metric.Start(m.wakes, string(why))
	}
	metric.Start(m.interrupted, "complete", "lost")
	metric.Start(m.suspends, "ok", "failed")
	metric.Start(m.saves, "ok", "failed")
	metric.Start(m.restores, "ok", "failed")
	m.saves.WithLabelValues("left")
	return m
}

// outcomeOf returns the label for an operation's result.
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

func (m *Metrics) slept(err error) {
	switch {
	case err == nil:
		m.sleeps.WithLabelValues("asleep").Inc()
	case errors.Is(err, freeze.ErrUsed):
		m.sleeps.WithLabelValues("used").Inc()
	default:
		m.sleeps.WithLabelValues("failed").Inc()
	}
}

func (m *Metrics) woken(by holdfast.WakeReason, took time.Duration) {
	m.wakes.WithLabelValues(string(by)).Inc()
	m.waking.Observe(took.Seconds())
}
