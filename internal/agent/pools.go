package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/hostload"
	"holdfast/internal/sessions/pool/container"
	"holdfast/internal/sessions/pool/network"
	"holdfast/internal/sessions/session"
)

// attachLimit is how long a boot keeps the kernel's cgroup migration path active at
// most. A boot that takes longer goes on without it.
const attachLimit = 5 * time.Second

// prewarmCgroupAttach keeps the cgroup migration path active until done is closed; see
// cgroup.ReadyAttach.
func (a *Agent) prewarmCgroupAttach(done <-chan struct{}) {
	if err := cgroup.ReadyAttach(done, attachLimit); err != nil {
		a.log.Debug("boots wait for an RCU grace period", "err", err)
	}
}

// newNetworks makes the pool of ready networks. It keeps none where no template
// joins one, makes none while the node takes no session, and none beside a session's
// boot.
func (a *Agent) newNetworks(dead session.Deadman) *network.Pool {
	size := 0
	if slices.ContainsFunc(a.cfg.SessionTemplates(), func(t session.Template) bool { return t.Pooled }) {
		size = a.cfg.Sessions.Networks
	}
	d := network.Deps{
		Engine: a.engine, Opener: a.opener,
		Wanted:  func() bool { return !a.sessions.Draining() },
		Busy:    func() bool { return a.sessions.Booting() > 0 },
		Metrics: network.NewMetrics(a.metrics), Log: a.log,
	}
	if dead != nil {
		d.Deadman = dead
	}
	return network.New(network.Config{Node: a.node, Size: size}, d)
}

// newWarmed makes the pool of warm containers, by the same rules. It is not beside
// the adoption, which ends what an earlier agent kept warm.
func (a *Agent) newWarmed(dead session.Deadman) *container.Pool {
	var kinds []container.Template
	for i, t := range a.cfg.SessionTemplates() {
		if most := a.cfg.Templates[i].Warm; most > 0 {
			kinds = append(kinds, container.Template{
				Name: t.Name, Image: t.Image, Most: most, Await: t.Await,
				Spec: func(name, dir, label string) engine.Spec {
					return t.WarmSpec(a.node, name, dir, container.Dir, label)
				},
			})
		}
	}
	d := container.Deps{
		Engine: a.engine, Opener: a.opener, Killer: a.killer,
		Fetch:    func(ctx context.Context, template string) error { return a.sessions.Fetch(ctx, template) },
		Wanted:   func() bool { return !a.sessions.Draining() },
		Busy:     func() bool { return a.sessions.Booting() > 0 },
		Pressure: (&pressure{load: a.load, log: a.log}).now,
		Metrics:  container.NewMetrics(a.metrics), Log: a.log,
	}
	if dead != nil {
		d.Deadman = dead
	}
	return container.New(container.Config{Node: a.node, Templates: kinds, Dir: filepath.Join(a.cfg.RunDir, "warm")}, d)
}

// warmContainers are the pool's as sessions want them.
type warmContainers struct{ *container.Pool }

func (w warmContainers) Take(template string) (session.WarmContainer, bool) {
	c := w.Pool.Take(template)
	return c, c != nil
}

// How short of memory a host has to be, as the share that is available, until nothing
// more is kept warm, and until less is.
const (
	tightMemory = 0.15
	shortMemory = 0.07
	pressureAge = time.Second // how long a look is good for
)

// pressure is how short the host is. It is one goroutine's.
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
		p.log.Debug("how short this host is of memory", "err", err)
	}
	p.last = pressureOf(m)
	return p.last
}

// pressureOf judges memory; where it is not known there is no pressure.
func pressureOf(m hostload.Memory) container.Pressure {
	switch free := float64(m.Available) / float64(max(m.Total, 1)); {
	case m.Total == 0 || free >= tightMemory:
		return container.NoPressure
	case free >= shortMemory:
		return container.Tight
	}
	return container.Short
}

// endLimit is how long the engine has to remove what the pools have, when the agent
// ends: it is dead by then.
const endLimit = 2 * time.Second

// endPools ends what is left of the pools, when no session is. What the engine does
// not remove in time is dead, and the next agent's to tidy up.
func (a *Agent) endPools(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	if err := errors.Join(a.warmed.End(ctx), a.networks.End(ctx)); err != nil {
		a.log.Debug("removing what was kept ready", "err", err)
	}
}
