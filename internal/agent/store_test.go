package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/pool/network"
	"holdfast/internal/sessions/session"
)

// listing is an engine that lists one container.
type listing struct {
	process.Engine
	one engine.Container
}

func (l listing) List(_ context.Context, labels map[string]string) ([]engine.Container, error) {
	for name, value := range labels {
		if l.one.Labels[name] != value {
			return nil, nil
		}
	}
	return []engine.Container{l.one}, nil
}

func TestContainersOfAnotherAgent(t *testing.T) {
	for name, c := range map[string]struct {
		label, node, store, state string
		lease                     bool // an agent has run on this data directory
		first                     bool // of the store
		refused                   bool
	}{
		"this store's":                               {session.LabelNode, "n1", "mine", "running", true, false, false},
		"another store's":                            {session.LabelNode, "n1", "theirs", "running", true, false, true},
		"another store's, frozen":                    {session.LabelNode, "n1", "theirs", "paused", true, false, true},
		"another store's network":                    {network.Label, "n1", "theirs", "running", true, false, true},
		"another store's, ended":                     {session.LabelNode, "n1", "theirs", "exited", true, false, false},
		"another node's":                             {session.LabelNode, "n2", "theirs", "running", true, false, false},
		"of an earlier version":                      {session.LabelNode, "n1", "", "running", true, false, false},
		"of an earlier version, after an upgrade":    {session.LabelNode, "n1", "", "running", true, true, false},
		"of an earlier version, and the first agent": {session.LabelNode, "n1", "", "running", false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(config.Config{Node: "n1", DataDir: t.TempDir()}, Options{}, nil, nil)
			labels := map[string]string{c.label: c.node}
			if c.store != "" {
				labels[session.LabelStore] = c.store
			}
			a.engine, a.storeID = listing{one: engine.Container{Name: "holdfast-alice-6", State: c.state, Labels: labels}}, "mine"
			if c.lease {
				if err := os.WriteFile(filepath.Join(a.cfg.DataDir, "lease"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := a.refuseOthers(t.Context(), c.first && !a.served())
			if refused := err != nil; refused != c.refused {
				t.Fatal(err)
			}
			if c.refused && (!strings.Contains(err.Error(), "of node n1 belong to another store") || !strings.Contains(holdfast.HintOf(err), "node:")) {
				t.Errorf("%v (%s)", err, holdfast.HintOf(err))
			}
		})
	}
}
