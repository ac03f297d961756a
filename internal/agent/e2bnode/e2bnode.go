// Package e2bnode makes the server for the SDKs of E2B from a node's configuration.
package e2bnode

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/control/config"
	"holdfast/internal/control/e2b"
	"holdfast/internal/platform/store"
)

// New returns the server, nil if the configuration has no address for it. The server calls the
// agent's API over its socket.
func New(c config.Config, node holdfast.NodeID, notes store.Notes, r prometheus.Registerer, log *slog.Logger) (*e2b.Server, error) {
	if c.E2B.Listen == "" {
		return nil, nil
	}
	agent, err := client.New(client.Options{Socket: c.API.Socket, Via: "e2b"})
	if err != nil {
		return nil, err
	}
	networks, err := c.E2B.Networks()
	if err != nil {
		return nil, err
	}
	o := e2b.Options{
		Domain: c.E2B.Domain, KeysFile: c.E2B.APIKeysFile, CertFile: c.E2B.CertFile, KeyFile: c.E2B.KeyFile, User: c.E2B.User,
		Node: string(node), WebhookNetworks: networks,
		Agent: agent, Notes: notes, Metrics: e2b.NewMetrics(r), Log: log,
	}
	for _, t := range c.Templates {
		if t.Replicas == 0 { // agents start replicas themselves
			o.Templates = append(o.Templates, e2b.Template{
				Name: t.Name, Port: t.Port, Ports: t.Ports, Pauses: t.Handover == "memory", Forks: t.Fork == "allowed", CPUs: t.CPUs, Memory: int64(t.Memory),
			})
		}
	}
	return e2b.New(o)
}
