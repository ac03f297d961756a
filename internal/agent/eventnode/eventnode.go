// Package eventnode joins what happened to a node's sessions with what other nodes know.
package eventnode

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/metric"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/events"
)

// Node implements api.History. Any goroutine may call its methods.
type Node struct {
	*events.History
	fleet events.Fleet
}

// Fleet is how a node reaches the others.
type Fleet struct {
	Store store.Store
	// Client returns a client of another node, which the caller closes.
	Client func(holdfast.Node) (*client.Client, error)
}

// New reads what earlier agents of the node have kept.
func New(c config.Config, node holdfast.NodeID, f Fleet, r prometheus.Registerer, log *slog.Logger) *Node {
	h := events.Open(c.DataDir, node, metric.Registry{Registerer: r}, log)
	return &Node{h, events.Fleet{Self: node, Own: h.Endings, Nodes: f.Store.Nodes,
		Ask: func(ctx context.Context, n holdfast.Node, key holdfast.SessionKey, limit int) ([]holdfast.Ending, error) {
			c, err := f.Client(n)
			if err != nil {
				return nil, err
			}
			defer c.Close()
			return c.NodeEndings(ctx, n.ID, key, limit)
		},
	}}
}

// Endings implements api.History.
func (n *Node) Endings(ctx context.Context, key holdfast.SessionKey, limit int) (holdfast.EndingReport, error) {
	return n.fleet.Report(ctx, key, limit)
}

// OwnEndings implements api.History.
func (n *Node) OwnEndings(key holdfast.SessionKey, limit int) []holdfast.Ending {
	return n.List(key, limit)
}

// Events implements api.History.
func (n *Node) Events(after int64) (next func(context.Context, bool) ([]holdfast.SessionEvent, error), closed func()) {
	r := n.Read(after)
	return r.Next, r.Close
}
