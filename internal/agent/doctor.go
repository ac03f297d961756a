package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/recordings"
	"holdfast/internal/hosts/doctor/rotation"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/platform/linux/cgroup"
	procfs "holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/drain"
)

// doctorPart is the doctor in the agent.
type doctorPart struct {
	watch      *watch.Watch
	rotation   *rotation.Rotation
	kernel     string
	local      baseline.Dir
	recordings *recordings.Store
	known      atomic.Pointer[[]fact.Fact] // of the baseline that goes for this host
	saving     sync.Mutex                  // one change of baselines at a time
}

// newDoctor makes the doctor's part, nil where it is switched off.
func (a *Agent) newDoctor(e doctor.Engine) *doctorPart {
	c := a.cfg.Doctor
	if !c.Watch.Enabled {
		return nil
	}
	host := probe.Host{Proc: procfs.FS(c.Proc), Sys: c.Sys, Child: a.opt.Alloc, Scratch: a.cfg.DataDir}
	var err error
	if host.Groups, err = cgroup.Find(host.Proc); err != nil {
		a.log.Warn("the doctor sees no control groups", "err", err)
	}
	groups := host.Groups
	record := func(ctx context.Context, length time.Duration, container string) (*profile.Profile, error) {
		return profile.Recorder{Proc: host.Proc, Groups: groups, Engine: e, For: length, Container: container}.Run(ctx)
	}
	d := &doctorPart{recordings: recordings.New(filepath.Join(a.cfg.DataDir, recordings.DirName), record), kernel: process.KernelRelease(c.Proc), local: baseline.Dir(filepath.Join(a.cfg.DataDir, baseline.DirName))}
	drains := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_doctor_drains_total", Help: "Drains of this node by the doctor, by outcome (clean, failed).",
	}, []string{"outcome"})
	a.metrics.MustRegister(drains, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_doctor_degraded", Help: "1 while this node is degraded: new sessions are placed elsewhere, as far as doctor.max_share goes.",
	}, func() float64 {
		if why, _ := d.rotation.Degraded(); why != "" {
			return 1
		}
		return 0
	}))
	d.rotation = rotation.New(c.Rotation, a.node, rotating{a}, func(_ bool, err error) {
		outcome := "clean"
		if err != nil {
			outcome = "failed"
		}
		drains.WithLabelValues(outcome).Inc()
	}, a.log)
	d.watch = watch.New(c.Watch, watch.Deps{
		Host: host, Engine: e, Store: watch.NewStore(a.cfg.DataDir, c.Watch.Keep, a.log), Metrics: watch.NewMetrics(a.metrics), Log: a.log,
		Changed: d.rotation.Found, Known: d.baselineFacts,
	})
	a.spinups.Suspect = d.watch.Suspect
	return d
}

func (d *doctorPart) baselineFacts() []fact.Fact {
	if known := d.known.Load(); known != nil {
		return *known
	}
	return nil
}

// startDoctor has the doctor watch. Sessions go on without it.
func (a *Agent) startDoctor(p *tasks.Stack) {
	if a.doctor == nil {
		return
	}
	p.Start("doctor", a.doctor.watch.Run)
	p.Start("the doctor's record", a.publishHealth)
	p.Start("rotation", a.doctor.rotation.Run)
}

// rotating is the node as the doctor takes it out of rotation.
type rotating struct{ a *Agent }

var _ rotation.Node = rotating{}

func (r rotating) Fleet(ctx context.Context) ([]holdfast.Node, error) { return r.a.store.Nodes(ctx) }
func (r rotating) Changed()                                           { r.a.lease.Changed() }
func (r rotating) Refuses() bool                                      { return r.a.sessions.Draining() }
func (r rotating) Return() error                                      { return r.a.drainer.ClaimAgain() }

// turnNote says whose turn it is to drain.
const turnNote = "doctor/drain"

// Turn takes the fleet's turn, under this node's lease. A node without others to
// hand its sessions to has none.
func (r rotating) Turn(ctx context.Context) (func(context.Context) error, bool, error) {
	lease := r.a.lease.ID()
	if r.a.fleet == nil || lease == 0 {
		return nil, false, nil
	}
	n, err := r.a.store.TakeNote(ctx, turnNote, []byte(r.a.node), lease)
	if errors.Is(err, store.ErrTaken) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return func(ctx context.Context) error { return r.a.store.DropNote(ctx, n) }, true, nil
}

// Drain hands everything over. Once begun it goes on to its end, also where the
// agent ends: that drain waits for it.
func (r rotating) Drain(ctx context.Context) error {
	c := r.a.cfg.Drain
	report := r.a.drainer.Drain(context.WithoutCancel(ctx), drain.Options{Budget: c.Budget, Quiet: c.Quiet}, func(holdfast.Step) {})
	if !report.Clean() {
		return fmt.Errorf("%w: %d containers, %d sessions", ErrLeft, len(report.Left), report.Owned-report.Released)
	}
	return nil
}
