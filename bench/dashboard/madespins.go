package dashboard

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup"
)

// madeSpinups generates the maximum number of spin-ups that an agent keeps. They cover
// three weeks and two drivers, of which one is slow, and one day with many slow ones.
const madeSpinups = 10_000

func (f *Fleet) makeSpinups(now time.Time) {
	images := []string{"registry.example/ci/build:2026.11", "registry.example/team/shell:1", "postgres:17", "node:24", "golang:1.26"}
	const every = 21 * 24 * time.Hour / madeSpinups
	for i := range madeSpinups {
		begun := now.Add(-time.Duration(i) * every)
		r := spinup.Record{ID: fmt.Sprintf("%016x%08x", begun.UnixNano(), i), Kind: spinup.ForSession, Job: fmt.Sprintf("user-%05d", i%5000+1),
			Image: images[f.rand.IntN(len(images))], Begun: begun, Outcome: spinup.OK, Container: fmt.Sprintf("%064x", i),
			Cohort: spinup.Cohort{Host: "web-0001", Engine: "docker 28.5.1", Driver: "overlay2", ImageStore: "graphdriver", Kernel: "6.12.0"}}
		if i%3 == 0 {
			r.Kind, r.Job = spinup.ForRun, fmt.Sprintf("run-%d", i)
		}
		slow := .02
		if i%7 == 0 {
			r.Cohort.Driver, slow = "aufs", .09
		}
		if d := now.Sub(begun); d > 5*24*time.Hour && d < 6*24*time.Hour {
			slow += .2
		}
		f.timeSpinup(&r, slow, i%4 == 0)
		f.spinups = append(f.spinups, r)
	}
}

// timeSpinup sets the times of a spin-up. slow is the probability of a slow phase.
func (f *Fleet) timeSpinup(r *spinup.Record, slow float64, pulled bool) {
	ms := func(usual, bad float64) holdfast.Millis {
		if f.rand.Float64() < slow {
			usual = bad
		}
		return holdfast.Millis(usual * (.5 + f.rand.Float64()) * float64(time.Second))
	}
	r.Times = map[spinup.Phase]holdfast.Millis{spinup.Create: ms(.3, 14), spinup.Start: ms(.4, 8)}
	if r.Kind == spinup.ForSession {
		r.Times[spinup.Ready] = ms(.9, 15)
	}
	if pulled {
		const mib = 240
		down, extract := ms(5, 30), ms(6, 50)
		rate := func(d holdfast.Millis) float64 { return mib / time.Duration(d).Seconds() }
		r.Times[spinup.Download], r.Times[spinup.Extract] = down, extract
		r.Pull = &spinup.Pull{Image: r.Image, Begun: r.Begun, Took: down + extract, Done: true,
			Download: spinup.Transfer{Bytes: mib << 20, Wall: down, Sum: down, Rate: rate(down), Exact: true},
			Extract:  spinup.Transfer{Bytes: mib << 20, Wall: extract, Sum: extract, Rate: rate(extract), Exact: true}}
		for i := range holdfast.Millis(4) {
			r.Pull.Layers = append(r.Pull.Layers, spinup.Layer{ID: fmt.Sprintf("%012x", f.rand.Int64N(1<<48)), State: spinup.Complete, Size: mib << 18, Fetched: mib << 18,
				Download: spinup.Span{From: i * down / 8, To: (i + 1) * down / 4}, Extract: spinup.Span{From: down + i*extract/4, To: down + (i+1)*extract/4}})
		}
	}
	for _, t := range r.Times {
		r.Took += t
	}
}

// Spinups lists the spin-ups that match the filter, newest first.
func (f *Fleet) Spinups(by spinup.Filter) (out []spinup.Record, _ error) {
	for _, r := range f.spinups {
		if by.Takes(r) && (by.Limit <= 0 || len(out) < by.Limit) {
			out = append(out, r)
		}
	}
	return out, nil
}

// Spinup returns one spin-up, or holdfast.ErrNotFound.
func (f *Fleet) Spinup(id string) (spinup.Record, error) {
	for _, r := range f.spinups {
		if r.ID == id {
			return r, nil
		}
	}
	return spinup.Record{}, fmt.Errorf("spin-up %s: %w", id, holdfast.ErrNotFound)
}

// Metrics returns the metrics of a busy node.
func (f *Fleet) Metrics() prometheus.Gatherer {
	reg := prometheus.NewRegistry()
	m := spinup.NewMetrics(reg, spinup.DefaultRules())
	for _, r := range f.spinups {
		m.Observe(r)
	}
	boots := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "holdfast_session_boot_seconds", Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30}}, []string{"phase", "outcome"})
	parks := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "holdfast_gateway_park_seconds", Buckets: []float64{.01, .1, 1, 10}})
	connects := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_gateway_connects_total"}, []string{"kind"})
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_gateway_connect_errors_total"}, []string{"reason"})
	parked := prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_gateway_parked_requests"})
	reg.MustRegister(boots, parks, connects, failed, parked)
	for _, s := range f.sessions {
		boots.WithLabelValues("total", "ok").Observe(time.Duration(s.Boot.Total()).Seconds())
		parks.Observe(time.Duration(s.Boot.Total()).Seconds())
	}
	boots.WithLabelValues("total", "failed").Observe(3)
	connects.WithLabelValues("request").Add(812_345)
	connects.WithLabelValues("upgrade").Add(23_456)
	for reason, n := range map[string]float64{"boot": 31, "upstream": 117, "bad_key": 912, "busy": 0} {
		failed.WithLabelValues(reason).Add(n)
	}
	parked.Set(12)
	gc.NewMetrics(reg)
	f.protectMetrics(reg)
	findings := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_doctor_findings"}, []string{"rule", "severity"})
	reg.MustRegister(findings)
	findings.WithLabelValues("fadvise-storm", "critical").Set(1)
	findings.WithLabelValues("fadvise-storm", "warning").Set(0)
	findings.WithLabelValues("limits-near", "notice").Set(1)
	return reg
}
