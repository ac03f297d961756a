// Package service is the doctor in an agent. It watches the host and publishes the host's
// health record for the fleet. It stores the fleet's baselines, and takes a degraded node
// out of rotation.
package service

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/recordings"
	"holdfast/internal/hosts/doctor/rotation"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/platform/linux/cgroup"
	procfs "holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/metric"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// Options configure a Doctor.
type Options struct {
	Node     holdfast.NodeID
	Kernel   string // its release
	Role     string // of the host, for its baseline
	DataDir  string
	Proc     string // mount point of the proc file system
	Sys      string
	Alloc    []string // the command line of probe.Alloc without its last argument
	Watch    watch.Config
	Rotation rotation.Config
	Cures    []schedule.Entry

	Engine doctor.Engine
	Guard  cure.Guard
	// Host is the node as the rotation acts on it.
	Host rotation.Node
	// Store and Lease return the store and the node's present lease, 0 for none.
	Store func() store.Store
	Lease func() store.LeaseID
	// Spinups returns the figures of the last day's spin-ups.
	Spinups func(now time.Time) ranking.Spinups
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Doctor is the doctor of one agent. Its methods may be called from any goroutine.
type Doctor struct {
	*watch.Watch
	Rotation   *rotation.Rotation
	Recordings *recordings.Store
	schedule   *schedule.Schedule

	o      Options
	local  baseline.Dir                // baselines that were saved while no agent ran
	known  atomic.Pointer[[]fact.Fact] // of the baseline for this host
	saving sync.Mutex                  // one change of baselines at a time
}

// New returns a Doctor that does not watch yet.
func New(o Options) *Doctor {
	host := probe.Host{Proc: procfs.FS(o.Proc), Sys: o.Sys, Kmsg: "/dev/kmsg", Child: o.Alloc, Scratch: o.DataDir}
	var err error
	if host.Groups, err = cgroup.Find(host.Proc); err != nil {
		o.Log.Warn("the doctor finds no control groups", "err", err)
	}
	groups := host.Groups
	record := func(ctx context.Context, q recordings.Request) (*profile.Profile, error) {
		r := profile.Recorder{Proc: host.Proc, Groups: groups, Engine: o.Engine, For: q.For, Container: q.Container}
		if q.Wait > 0 {
			r.Start = &profile.Start{Within: q.Wait}
		}
		return r.Run(ctx)
	}
	d := &Doctor{
		o: o, Recordings: recordings.New(filepath.Join(o.DataDir, recordings.DirName), record),
		local: baseline.Dir(filepath.Join(o.DataDir, baseline.DirName)),
	}
	r := metric.Registry{Registerer: o.Metrics}
	drains := r.CounterVec("holdfast_doctor_drains_total", "Drains of this node by the doctor, by outcome (clean, failed).", "outcome")
	metric.GaugeFunc(r, "holdfast_doctor_degraded", "1 while this node is degraded: new sessions are placed on other nodes, as far as doctor.max_share allows.", func() int {
		if why, _ := d.Rotation.Degraded(); why != "" {
			return 1
		}
		return 0
	})
	d.Rotation = rotation.New(o.Rotation, o.Node, o.Host, func(err error) {
		outcome := "clean"
		if err != nil {
			outcome = "failed"
		}
		drains.WithLabelValues(outcome).Inc()
	}, o.Log)
	d.Watch = watch.New(o.Watch, watch.Deps{
		Host: host, Engine: o.Engine, Store: watch.NewStore(o.DataDir, o.Watch.Keep, o.Log), Metrics: watch.NewMetrics(o.Metrics), Log: o.Log,
		Changed: d.Rotation.Found, Known: d.baselineFacts,
	})
	d.schedule = schedule.New(o.Cures, schedule.Deps{DataDir: o.DataDir, Doctor: d.Watch, Host: host, Guard: o.Guard, Metrics: o.Metrics, Log: o.Log})
	return d
}

// Start starts the doctor's parts. Their errors do not end the agent.
func (d *Doctor) Start(p *tasks.Stack) {
	p.Start("doctor", d.Run)
	p.Start("the doctor's record", d.Publish)
	p.Start("rotation", d.Rotation.Run)
	p.Start("scheduled cures", d.schedule.Run)
}

// Cures returns the scheduled cures, and the last ones that were carried out on this host,
// at most limit (0: all that are kept).
func (d *Doctor) Cures(limit int) ([]schedule.State, []cure.Report, error) {
	past, err := cure.Journal{Path: filepath.Join(d.o.DataDir, cure.FileName)}.List(limit)
	return d.schedule.States(), past, err
}

// AllowCure lets a scheduled cure run again that the schedule has stopped.
func (d *Doctor) AllowCure(name string) error { return d.schedule.Allow(name) }

func (d *Doctor) baselineFacts() []fact.Fact {
	if known := d.known.Load(); known != nil {
		return *known
	}
	return nil
}
