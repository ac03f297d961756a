package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"holdfast"
)

// A person's cordon is kept in the data directory: it holds over restarts of the
// agent and of the host, until a person lifts it.
func (a *Agent) cordonFile() string { return filepath.Join(a.cfg.DataDir, "cordoned") }

// Cordon implements api.NodeService: the node refuses new sessions and keeps those
// that it has.
func (a *Agent) Cordon() error {
	if err := os.WriteFile(a.cordonFile(), nil, 0o600); err != nil {
		return fmt.Errorf("keeping the cordon: %w", err)
	}
	a.sessions.Cordon()
	a.lease.Changed()
	return nil
}

// cordoned reports whether a person has cordoned the node.
func (a *Agent) cordoned() bool {
	_, err := os.Stat(a.cordonFile())
	return !errors.Is(err, fs.ErrNotExist)
}

// Uncordon implements api.NodeService: the node accepts sessions again, after a
// cordon or when a running drain has ended.
func (a *Agent) Uncordon() error {
	if err := os.Remove(a.cordonFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lifting the cordon: %w", err)
	}
	return a.claimAgain()
}

// claimAgain takes sessions again once a drain under way is over, unless a person
// has cordoned the node.
func (a *Agent) claimAgain() error {
	a.drainMu.Lock()
	defer a.drainMu.Unlock()
	switch {
	case a.ending:
		return fmt.Errorf("the agent is ending: %w", holdfast.ErrDraining)
	case a.cordoned():
		return fmt.Errorf("the node is cordoned: %w", holdfast.ErrDraining)
	}
	a.sessions.Claim()
	a.lease.Changed()
	return nil
}
