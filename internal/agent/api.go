package agent

import (
	"context"
	"errors"
	"fmt"
	"os"

	"holdfast"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/fleetstats"
	"holdfast/internal/sessions/drain"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/replace"
)

// apiParts returns what the API and the dashboard serve.
func (a *Agent) apiParts() api.Parts {
	v := api.BuildVersion()
	if a.opt.Version != "" {
		v.Version = a.opt.Version
	}
	v.Node, v.PID = a.node, os.Getpid()
	p := api.Parts{
		Version: v, Agent: a, Sessions: sessions{a}, Forks: a.forks(), History: a.past, Commands: a.commands, Files: a.files, Forwards: a.ports, Jobs: a.jobs, Nodes: nodes{a, a.drainer}, Replacer: a, Groups: a.groups,
		Prefetcher: a.prefetch, Spinups: a.spinups, FleetSpinups: a.fleetSpinups().Report, UnderWay: a.spinups.UnderWay(), Experiments: a.experiments, GC: a.collector,
		Protection: func(ctx context.Context) (api.Protection, error) {
			return api.ReadProtection(ctx, protect.LockDir, a.log)
		},
		Doctor: api.DoctorOff{}, Recordings: api.DoctorOff{},
	}
	if a.doctor != nil {
		p.Doctor, p.Recordings = hostDoctor{a.doctor, a}, a.doctor.Recordings
	}
	return p
}

// fleetSpinups asks all nodes about their spin-ups.
func (a *Agent) fleetSpinups() fleetstats.Fleet {
	return fleetstats.Fleet{
		Self: a.node, Own: a.spinups.Sketch, Nodes: a.store.Nodes,
		Ask: func(ctx context.Context, n holdfast.Node, q spinup.Question) (spinup.Sketch, error) {
			c, err := a.clientTo(n)
			if err != nil {
				return spinup.Sketch{}, err
			}
			defer c.Close()
			return c.SpinupSketch(ctx, n.ID, q)
		},
	}
}

// Ready implements api.AgentService.
func (a *Agent) Ready(ctx context.Context) (int, error) {
	if a.sessions.Draining() {
		return 0, fmt.Errorf("node %s: %w", a.node, holdfast.ErrDraining)
	}
	if err := a.health.Answers(ctx, probeTimeout); err != nil {
		return 0, err
	}
	if err := a.works.Ready(); err != nil {
		return 0, err
	}
	n, err := a.store.Node(ctx, a.node)
	if errors.Is(err, holdfast.ErrNotFound) {
		return 0, fmt.Errorf("node %s has no record: %w", a.node, holdfast.ErrStore)
	}
	return fleet.Weight(&n), err
}

// StopAgent implements api.AgentService.
func (a *Agent) StopAgent(keep bool) error {
	a.End(handoff.ShutdownMode{Keep: keep})
	return nil
}

// LastUpgrade implements api.AgentService.
func (a *Agent) LastUpgrade() api.Upgrade { return a.upgrades.Report() }

// nodes implements api.NodeService.
type nodes struct {
	a *Agent
	*drain.Drainer
}

// Nodes implements api.NodeService. The other nodes are as they published
// themselves last, a moment ago; the counts of this node are current.
func (n nodes) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	all, err := n.a.store.Nodes(ctx)
	for i := range all {
		if all[i].ID == n.a.node {
			all[i].Sessions, all[i].Boots = n.a.sessions.Counts()
			all[i].Draining = n.a.sessions.Draining()
		}
	}
	return all, err
}

// Drain implements api.NodeService.
func (n nodes) Drain(ctx context.Context, q api.DrainRequest, progress func(holdfast.Step)) (holdfast.DrainReport, error) {
	return n.Drainer.Drain(ctx, drainOptions(n.a.cfg.Drain, q), progress), nil
}

// Replace implements api.Replacer.
func (a *Agent) Replace(ctx context.Context, q api.Replace, progress func(bool, holdfast.Replacement)) (holdfast.ReplaceReport, error) {
	if !a.replacing.TryLock() {
		return holdfast.ReplaceReport{}, fmt.Errorf("another replacement of sessions is under way on node %s: %w", a.node, holdfast.ErrBusy)
	}
	defer a.replacing.Unlock()
	o := replace.Options{Keys: q.Keys, Parallel: q.Parallel, Timeout: q.Timeout, History: a.history}
	return replace.Run(ctx, o, a.replacer, progress), nil
}

// Replacements implements api.Replacer.
func (a *Agent) Replacements(limit int) ([]holdfast.Replacement, error) { return a.history.List(limit) }
