// Package netnode gives an agent's sessions on Docker networks on Holdfast's bridge.
package netnode

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
	"holdfast/internal/sessions/pool/network"
	"holdfast/internal/sessions/runtimes"
)

// Node is the part of an agent that the networks need.
type Node struct {
	ID           holdfast.NodeID
	Store        string // identity of the node's store
	Config       config.Config
	Engine       engine.Engine
	Opener       *kill.Opener
	Works        *runtimes.Checker
	Wanted, Busy func() bool // as in network.Deps
	Metrics      prometheus.Registerer
	Log          *slog.Logger
}

// Networks implements pool.Networks. Without a bridge there are none.
type Networks struct {
	pool *network.Pool // nil: none
	why  error         // why there are no new ones on an engine with a bridge beside it
}

// New returns the networks of a node. There are none on an engine without a bridge of
// Holdfast's beside it. No new ones are made if no template's sessions join one, or if they
// cannot work.
func New(n Node) Networks {
	e, ok := n.Engine.(*process.Docker)
	if !ok {
		return Networks{}
	}
	// Not in the run directory: a session may write its files in /etc, and would fill a file
	// system in memory that the host's services need.
	c := network.Config{Node: n.ID, Store: n.Store, Dir: filepath.Join(n.Config.DataDir, "networks")}
	d := network.Deps{
		Engine: e, Opener: n.Opener, Net: e.OwnNet(), Wanted: n.Wanted, Busy: n.Busy,
		Metrics: network.NewMetrics(n.Metrics), Log: n.Log,
	}
	why := process.Lacking(e)
	switch {
	case !n.Config.Joins():
		why = nil
	case why != nil:
		n.Log.Warn("sessions get networks of the engine's, and not of Holdfast's", "err", why)
	default:
		d.Engine = n.Works.Observe(e)
		c.Holders, c.Ready = n.Config.Sessions.Boots, n.Config.Sessions.Networks
		if slices.ContainsFunc(n.Config.Templates, func(t config.Template) bool { return t.Warm > 0 }) {
			c.Holders++ // the pool of warm containers makes one at a time
		}
	}
	return Networks{network.New(c, d), why}
}

// Run maintains the networks until ctx is done; see network.Pool.
func (n Networks) Run(ctx context.Context) error {
	if n.pool == nil {
		<-ctx.Done()
		return nil
	}
	return n.pool.Run(ctx)
}

// End removes the holders; see network.Pool.
func (n Networks) End(ctx context.Context) error {
	if n.pool == nil {
		return nil
	}
	return n.pool.End(ctx)
}

// Counts returns how many networks are ready, how many are kept ready, and why containers
// get networks of the engine's, "" if they do not.
func (n Networks) Counts() (ready, kept int, engines string) {
	if n.pool == nil {
		return 0, 0, ""
	}
	if why := cmp.Or(n.why, n.pool.Problem()); why != nil {
		engines = why.Error()
	}
	c := n.pool.Counts()
	return c.Ready, c.Target, engines
}

// Take implements pool.Networks.
func (n Networks) Take(ctx context.Context, hostname string) (pool.Joined, bool) {
	if n.pool == nil {
		return pool.Joined{}, false
	}
	return n.pool.Take(ctx, hostname)
}

// Settled implements pool.Networks.
func (n Networks) Settled() bool { return n.pool == nil || n.pool.Settled() }

// Started implements pool.Networks. It follows a Take.
func (n Networks) Started(addr netip.Addr, pid int) error { return n.pool.Started(addr, pid) }

// Adopt implements pool.Networks.
func (n Networks) Adopt(addr netip.Addr) {
	if n.pool != nil {
		n.pool.Adopt(addr)
	}
}

// Drop implements pool.Networks.
func (n Networks) Drop(addr netip.Addr) {
	if n.pool != nil {
		n.pool.Drop(addr)
	}
}
