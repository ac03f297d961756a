package session

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// IdentityDir and IdentityFile are where a container with a runtime of its own finds its
// identity, as a holdfast.Identity in JSON. Its environment is that of the epoch
// in which it was started. A warm container finds its identity at the same place.
const (
	IdentityDir  = "/run/holdfast"
	IdentityFile = "session.json"
	// GenerationFile has 128 random bits, in hexadecimal digits and a newline. Each container
	// has others: a process that finds another content than before continues in another
	// container, maybe as one of several.
	GenerationFile = "generation"
)

// identityDir returns the directory of this host that is mounted at IdentityDir in the
// container of the record's epoch.
func (m *Manager) identityDir(o holdfast.Owner) string {
	return filepath.Join(m.cfg.IdentityRoot, epochName(o))
}

// epochName is the name of files and directories of one epoch of a session.
func epochName(o holdfast.Owner) string {
	return string(o.Key) + "@" + strconv.FormatInt(int64(o.Epoch), 10)
}

// mountIdentity writes the identity file and mounts it in the session's own container,
// if the template has a runtime or saves memory.
func (b *attempt) mountIdentity(spec *engine.Spec) error {
	if b.m.cfg.IdentityRoot == "" || !b.e.template.SaveMemory && b.e.template.Runtime == "" {
		return nil
	}
	dir := b.m.identityDir(b.owner)
	// Any user of the container may read it. On this host only root can reach it.
	err := errors.Join(os.MkdirAll(b.m.cfg.IdentityRoot, 0o700), os.MkdirAll(dir, 0o755))
	if err == nil {
		err = b.writeIdentity(dir)
	}
	if err != nil {
		return fmt.Errorf("writing the container's identity: %w", err)
	}
	spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: dir, Target: IdentityDir, ReadOnly: true})
	return nil
}

// writeIdentity writes the files of the identity directory.
func (b *attempt) writeIdentity(dir string) error {
	text, err := json.Marshal(b.e.template.identity(b.owner))
	if err != nil {
		return err
	}
	b.generation = generation()
	err = errors.Join(os.WriteFile(filepath.Join(dir, IdentityFile), append(text, '\n'), 0o644), os.WriteFile(filepath.Join(dir, GenerationFile), []byte(b.generation+"\n"), 0o644))
	if err != nil {
		return err
	}
	if b.m.cfg.Show != nil { // a restored process may have the program open
		if err := b.m.cfg.Show(dir); err != nil {
			b.m.log.Warn("the files of a session cannot be reached", "session", b.e.key, "err", err)
		}
	}
	return nil
}

// generation returns the content of a GenerationFile without its newline.
func generation() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it returns no error (crypto/rand)
	return hex.EncodeToString(b)
}

// removeIdentity removes the identity of a dead container.
func (m *Manager) removeIdentity(o holdfast.Owner) {
	if m.cfg.IdentityRoot == "" || o.Epoch == 0 {
		return
	}
	if err := os.RemoveAll(m.identityDir(o)); err != nil {
		m.log.Warn("removing a container's identity", "session", o.Key, "epoch", o.Epoch, "err", err)
	}
}

// sweepIdentities removes the identities of an earlier agent's containers that are
// gone.
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
	entries, _ := os.ReadDir(m.cfg.IdentityRoot) // on an error there is nothing to remove
	for _, e := range entries {
		if !keep[e.Name()] {
			_ = os.RemoveAll(filepath.Join(m.cfg.IdentityRoot, e.Name())) // the next agent retries
		}
	}
}
