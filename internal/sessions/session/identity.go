package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// Where a container whose memory can be saved finds who it is in this life, as a
// holdfast.Identity in JSON: its environment is of the life in which it was started.
// A warm container finds the same there.
const (
	IdentityDir  = "/run/holdfast"
	IdentityFile = "session.json"
)

// identityDir is the directory of this host that a life's container has at ToldDir.
func (m *Manager) identityDir(o holdfast.Owner) string {
	return filepath.Join(m.cfg.IdentityRoot, string(o.Key)+"@"+strconv.FormatInt(int64(o.Epoch), 10))
}

// countFigures has the session's own container be told who it is, where that matters.
func (b *attempt) mountIdentity(spec *engine.Spec) error {
	if b.m.cfg.IdentityRoot == "" || !b.e.template.SaveMemory {
		return nil
	}
	text, err := json.Marshal(b.e.template.identity(b.owner))
	if err != nil {
		return err
	}
	dir := b.m.identityDir(b.owner)
	// Any user of the container may read it; of this host only root gets there.
	err = errors.Join(os.MkdirAll(b.m.cfg.IdentityRoot, 0o700), os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, IdentityFile), append(text, '\n'), 0o644))
	if err != nil {
		return fmt.Errorf("tell the container who it is: %w", err)
	}
	spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: dir, Target: IdentityDir, ReadOnly: true})
	return nil
}

// removeIdentity removes what the container of a life was told, which is dead.
func (m *Manager) removeIdentity(o holdfast.Owner) {
	if m.cfg.IdentityRoot == "" || o.Epoch == 0 {
		return
	}
	if err := os.RemoveAll(m.identityDir(o)); err != nil {
		m.log.Warn("what a container was told stays behind", "session", o.Key, "epoch", o.Epoch, "err", err)
	}
}

// sweepIdentities removes what an earlier agent's containers were told that are gone.
func (m *Manager) sweepIdentities() {
	if m.cfg.IdentityRoot == "" {
		return
	}
	keep := map[string]bool{}
	m.mu.Lock()
	for _, e := range m.sessions {
		keep[filepath.Base(m.identityDir(e.owner))] = true
	}
	for _, e := range m.detached {
		keep[filepath.Base(m.identityDir(e.owner))] = true
	}
	m.mu.Unlock()
	entries, _ := os.ReadDir(m.cfg.IdentityRoot) // without it there is nothing to remove
	for _, e := range entries {
		if !keep[e.Name()] {
			_ = os.RemoveAll(filepath.Join(m.cfg.IdentityRoot, e.Name())) // the next agent tries again
		}
	}
}
