package agent

import (
	"context"
	"slices"
	"time"

	"holdfast/internal/netpool"
	"holdfast/internal/session"
)

// newNetworks makes the pool of ready networks. It keeps none where no template
// joins one, makes none while the node takes no session, and none beside a session's
// boot.
func (a *Agent) newNetworks() *netpool.Pool {
	size := 0
	if slices.ContainsFunc(a.cfg.SessionTemplates(), func(t session.Template) bool { return t.Pooled }) {
		size = a.cfg.Sessions.Networks
	}
	return netpool.New(netpool.Config{Node: a.node, Size: size}, netpool.Deps{
		Engine: a.engine, Opener: a.opener,
		Wanted:  func() bool { return !a.sessions.Draining() },
		Busy:    func() bool { return a.sessions.Booting() > 0 },
		Metrics: netpool.NewMetrics(a.metrics), Log: a.log,
	})
}

// endLimit is how long the engine has to remove what held networks, when the
// agent ends: they are dead by then.
const endLimit = 2 * time.Second

// endNetworks ends what is left of the pool, when no session is. What the engine
// does not remove in time is dead, and the next agent's to tidy up.
func (a *Agent) endNetworks(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	if err := a.networks.End(ctx); err != nil {
		a.log.Debug("removing what held ready networks", "err", err)
	}
}
