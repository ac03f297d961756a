package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/guardian"
)

// ownNet is an engine whose containers are on a network that this program makes.
type ownNet interface {
	Net() vethnet.Config
	Upkeep() (failures int, last error)
}

// guardNet has the guardian take away the containers' network, and its way out of this
// host, when this agent is gone, none comes after it, and no container is left. A guardian
// that dies is replaced.
func (a *Agent) guardNet(p *tasks.Stack, g *guardian.Guardian) {
	n, ok := a.engine.(ownNet)
	if !ok {
		return
	}
	plan := guardian.Plan{Name: "the containers' network", Undo: []guardian.Undo{{Kind: guardian.Leave, Nets: []vethnet.Config{n.Net()}}}}
	p.Start("the guard of the containers' network", func(ctx context.Context) error {
		for {
			armed, err := g.Arm(plan)
			if err != nil {
				if ctx.Err() == nil {
					a.log.Error("nobody would take away the containers' network if this agent was killed (tried again)", "err", err)
				}
				armed = nil
			}
			if !guarded(ctx, armed) {
				return nil
			}
		}
	})
}

// guarded waits until a plan is in nobody's hands any more, and reports whether another
// try is due. With none it waits for a while.
func guarded(ctx context.Context, armed *guardian.Armed) bool {
	var lost <-chan struct{}
	var again <-chan time.Time
	if armed != nil {
		lost = armed.Done()
	} else {
		again = time.After(healthEvery)
	}
	select {
	case <-lost:
	case <-again:
	case <-ctx.Done():
		return false // and it stays armed
	}
	return ctx.Err() == nil
}

// upkeepMetric counts what went wrong in looking after the containers' network.
func upkeepMetric(e engine.Engine) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "holdfast_network_upkeep_failures_total",
		Help: "Times that the network of containers, and their way out of the host, could not be looked after. On containerd.",
	}, func() float64 {
		n, ok := e.(ownNet)
		if !ok {
			return 0
		}
		failures, _ := n.Upkeep()
		return float64(failures)
	})
}
