package recorder

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/others"
	"holdfast/internal/hosts/spinup/underway"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/tasks"
)

const (
	infoTimeout = 10 * time.Second // of asking the engine for its version
	// otherLife is how long a container that another client has created counts as
	// under way.
	otherLife = 2 * time.Minute
)

// Host records the spin-ups of an engine's host. It implements session.Spinups.
type Host struct {
	*Recorder
	list   *underway.List // spin-ups under way
	name   string
	engine engine.Engine
	own    []string
	cohort atomic.Pointer[spinup.Cohort]
	root   atomic.Pointer[string] // the engine's data root
	stale  tasks.Signal           // the engine may have changed
}

// HostOptions configure a Host.
type HostOptions struct {
	Options
	Node   string
	RunDir string // where other tools announce their spin-ups
	Engine engine.Engine
	Info   engine.Info
	// Own are the labels of containers that the agent creates itself.
	Own []string
}

// NewHost returns a Host.
func NewHost(o HostOptions) *Host {
	h := &Host{
		Recorder: New(o.Options), list: NewUnderWay(o.RunDir, o.Metrics, o.Log),
		name: o.Node, engine: o.Engine, own: o.Own, stale: tasks.NewSignal(),
	}
	h.setEngine(o.Info)
	return h
}

// NewUnderWay returns the list of the spin-ups in progress on this host, with those that
// other tools announce in runDir, and registers its metrics.
func NewUnderWay(runDir string, reg prometheus.Registerer, log *slog.Logger) *underway.List {
	list := underway.New(boottime.Now)
	leases, err := underway.OpenLeases(filepath.Join(runDir, underway.DirName), boottime.Now)
	if err == nil {
		list.Include(leases)
		err = leases.Make()
	}
	if err != nil {
		log.Warn("spin-ups that other tools announce are not counted", "err", err)
	}
	for _, kind := range append(spinup.Kinds(), underway.Outside) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_spinups_under_way", Help: "Spin-ups that have begun and not ended, by kind (session, pull, run, other, pod, outside).",
			ConstLabels: prometheus.Labels{"kind": string(kind)},
		}, func() float64 { return float64(list.Counts()[string(kind)]) }))
	}
	return list
}

// Begin adds a spin-up to the list until end is called. The time limit of its entry
// depends on the kind: a session's boot has time limits of its own.
func Begin(list *underway.List, kind spinup.Kind, name string, log *slog.Logger) (end func()) {
	life := underway.MaxLife
	if kind == spinup.ForOther {
		life = otherLife
	}
	e, err := list.Begin(string(kind), name[:min(len(name), underway.MaxName)], life)
	if err != nil {
		log.Debug("a spin-up is not counted as under way", "kind", kind, "name", name, "err", err)
		return func() {}
	}
	return func() { _ = list.End(e.ID) } // fails if the entry has expired
}

func (h *Host) setEngine(info engine.Info) {
	c := spinup.NewCohort(h.name, info, spinup.HasUnpigz())
	h.cohort.Store(&c)
	h.root.Store(&info.DataRoot)
}

// Cohort implements session.Spinups.
func (h *Host) Cohort() spinup.Cohort { return *h.cohort.Load() }

// Begin implements session.Spinups.
func (h *Host) Begin(kind spinup.Kind, name string) (end func()) {
	return Begin(h.list, kind, name, h.log)
}

// UnderWay is the list of the spin-ups that are under way.
func (h *Host) UnderWay() *underway.List { return h.list }

// Run runs the Recorder and the list, and asks the engine for its version after it
// was reconnected, until ctx is done.
func (h *Host) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	beside.Go(func() { _ = h.list.Run(ctx) }) // it returns nil
	beside.Go(func() {
		for {
			select {
			case <-h.stale:
				h.refresh(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	defer beside.Wait()
	return h.Recorder.Run(ctx)
}

// refresh asks the engine for its version and storage.
func (h *Host) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := h.engine.Info(ctx)
	if err != nil {
		h.log.Debug("the engine's version is unknown until it answers again", "err", err)
		return
	}
	was := h.Cohort()
	h.setEngine(info)
	if now := h.Cohort(); now != was {
		h.log.Info("the engine has changed", "was", was.Engine, "storage_was", was.Driver, "is", now.Engine, "storage", now.Driver)
	}
}

// Others returns the watcher that records the spin-ups of other clients of the
// engine.
func (h *Host) Others() *others.Watcher {
	return others.New(h.engine, others.Config{
		Own:    h.own,
		Cohort: h.Cohort, Begin: h.Begin, Record: h.Record, Log: h.log,
		Connected: h.stale.Set,
		DataRoot:  func() string { return *h.root.Load() },
		Busy:      h.busy,
	})
}

// busy reports whether the agent itself has spin-ups under way.
func (h *Host) busy() bool {
	counts := h.list.Counts()
	return counts[string(spinup.ForSession)]+counts[string(spinup.ForPull)]+counts[string(spinup.ForRun)] > 0
}
