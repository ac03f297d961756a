package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"holdfast/internal/agent/netnode"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/hostload"
	"holdfast/internal/sessions/pool/container"
	"holdfast/internal/sessions/session"
)

// attachLimit is how long a boot keeps the kernel's cgroup migration path active at
// most. A boot that takes longer continues without it.
const attachLimit = 5 * time.Second

// prewarmCgroupAttach keeps the cgroup migration path active until done is closed; see
// cgroup.ReadyAttach.
func (a *Agent) prewarmCgroupAttach(done <-chan struct{}) {
	if err := cgroup.ReadyAttach(done, attachLimit); err != nil {
		a.log.Debug("boots wait for an RCU grace period", "err", err)
	}
}

// newNetworks returns the networks on Holdfast's bridge. It makes none while the node refuses
// new sessions, and none ahead during the boot of a session.
func (a *Agent) newNetworks() netnode.Networks {
	return netnode.New(netnode.Node{
		ID: a.node, Store: a.storeID, Config: a.cfg, Engine: a.engine, Opener: a.opener, Works: a.works,
		Wanted:  func() bool { return !a.sessions.Draining() },
		Busy:    func() bool { return a.sessions.Booting() > 0 },
		Metrics: a.metrics, Log: a.log,
	})
}

// newWarmPool returns the pool of warm containers, with the same rules. It starts after the
// adoption, which ends the warm containers of an earlier agent.
func (a *Agent) newWarmPool(dead session.Deadman) *container.Pool {
	var kinds []container.Template
	for i, t := range a.templates() {
		most := a.cfg.Templates[i].Warm
		if most == 0 || t.SaveMemory && a.mover == nil {
			continue
		}
		kinds = append(kinds, container.Template{
			Name: t.Name, Image: t.Image, Most: most, Joins: t.Pooled, Sandbox: t.SaveMemory, Await: t.Await,
			Spec: func(name, dir, label string) engine.Spec {
				return t.WarmSpec(a.node, name, dir, container.Dir, label)
			},
		})
	}
	var hold func(id string) error
	if a.mover != nil {
		hold = a.mover.Hold
	}
	return container.New(container.Config{Templates: kinds, Dir: filepath.Join(a.cfg.RunDir, "warm"), SandboxDir: filepath.Join(a.cfg.DataDir, "sandboxes")}, container.Deps{
		Hold:   hold,
		Engine: a.engine, Opener: a.opener, Killer: a.killer, Deadman: dead, Networks: a.networks,
		Fetch:    func(ctx context.Context, template string) error { return a.sessions.Fetch(ctx, template) },
		Wanted:   func() bool { return !a.sessions.Draining() },
		Busy:     func() bool { return a.sessions.Booting() > 0 },
		Pressure: (&pressure{load: a.load, log: a.log}).now,
		Metrics:  container.NewMetrics(a.metrics), Log: a.log,
	})
}

// warmContainers adapts the pool to sessions.
type warmContainers struct{ *container.Pool }

func (w warmContainers) Take(template string) (session.WarmContainer, bool) {
	c := w.Pool.Take(template)
	return c, c != nil
}

// Below these shares of available memory the warm pool stops growing (tight), and shrinks
// (short).
const (
	tightMemory = 0.15
	shortMemory = 0.07
	pressureAge = time.Second // how long a measurement is valid
)

// pressure measures the memory pressure of the host. One goroutine uses it.
type pressure struct {
	load *hostload.Meter
	log  *slog.Logger
	at   time.Time
	last container.Pressure
}

func (p *pressure) now() container.Pressure {
	if time.Since(p.at) < pressureAge {
		return p.last
	}
	p.at = time.Now()
	m, err := p.load.Memory()
	if err != nil {
		p.log.Debug("measuring the memory pressure of this host", "err", err)
	}
	p.last = pressureOf(m)
	return p.last
}

// pressureOf judges memory. If the available memory is unknown, there is no pressure.
func pressureOf(m hostload.Memory) container.Pressure {
	switch free := float64(m.Available) / float64(max(m.Total, 1)); {
	case m.Total == 0 || free >= tightMemory:
		return container.NoPressure
	case free >= shortMemory:
		return container.Tight
	}
	return container.Short
}

// endLimit is the time in which the engine has to remove the containers of the pools when
// the agent ends. Their processes are dead by then.
const endLimit = 2 * time.Second

// endPools removes the containers of the pools after the last session has ended. The next
// agent removes what the engine did not remove in time; its processes are dead.
func (a *Agent) endPools(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	if err := errors.Join(a.warmPool.End(ctx), a.networks.End(ctx)); err != nil {
		a.log.Debug("removing what was kept ready", "err", err)
	}
}
