package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/store"
)

// A claim deletes the suspend note of its key from the store. Until the boot has taken the
// image, a file of this node has the note, too. If the agent is killed meanwhile, the node's
// next agent leaves the note to the next claim, and no memory is lost.

// resumingFile returns the file with the suspend note that the record's claim received.
func (m *Manager) resumingFile(o holdfast.Owner) string {
	return filepath.Join(m.cfg.Resuming, epochName(o))
}

// keepNote writes the suspend note to its file. It does not sync: the page cache outlives the
// agent, and a boot does not wait for a disk.
func (b *attempt) keepNote() {
	if b.m.cfg.Resuming == "" || b.suspended.From != nil {
		return
	}
	text, err := json.Marshal(b.suspended)
	if err == nil {
		err = os.MkdirAll(b.m.cfg.Resuming, 0o700)
	}
	if err == nil {
		err = atomicfile.WriteNoSync(b.m.resumingFile(b.owner), text, 0o600)
	}
	if err != nil {
		b.m.log.Warn("the memory of a session is lost if the agent is killed before the session has started", "session", b.e.key, "epoch", b.owner.Epoch, "err", err)
	}
}

// dropNote removes the file of keepNote, if there is one.
func (m *Manager) dropNote(o holdfast.Owner) {
	if m.cfg.Resuming == "" {
		return
	}
	if err := os.Remove(m.resumingFile(o)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("removing the suspend note of a session", "session", o.Key, "epoch", o.Epoch, "err", err)
	}
}

// dropNotes removes the files of all earlier agents.
func (m *Manager) dropNotes() {
	if m.cfg.Resuming == "" {
		return
	}
	if err := os.RemoveAll(m.cfg.Resuming); err != nil {
		m.log.Warn("removing the suspend notes of an earlier agent", "err", err)
	}
}

// leaveNote releases the record of a claim that has not taken its image, and leaves the note to
// the next claim. store.ErrStale.
func (m *Manager) leaveNote(ctx context.Context, o holdfast.Owner, left holdfast.Suspended) error {
	left.After = o.Epoch
	text, err := json.Marshal(left)
	if err != nil {
		return err
	}
	return m.deps.Store.Suspend(ctx, o, string(text))
}

// keptNote returns the note that an earlier agent's claim received. fs.ErrNotExist if its boot had
// no note, or has taken the image.
func (m *Manager) keptNote(o holdfast.Owner) (left holdfast.Suspended, err error) {
	if m.cfg.Resuming == "" || m.cloned() {
		return left, fs.ErrNotExist
	}
	text, err := os.ReadFile(m.resumingFile(o))
	if err == nil {
		err = json.Unmarshal(text, &left)
	}
	return left, err
}

// suspendInterrupted leaves the notes of boots that an earlier agent began and did not end. It
// returns the records without such a note. Their containers are dead.
func (m *Manager) suspendInterrupted(ctx context.Context, owners []holdfast.Owner) (rest []holdfast.Owner, err error) {
	for _, o := range owners {
		left, err := m.keptNote(o)
		if err == nil {
			err = m.leaveNote(ctx, o, left)
		}
		switch {
		case err == nil:
			m.log.Info("session stays suspended: an earlier agent ended before it had taken the image", "session", o.Key, "epoch", left.Epoch)
		case errors.Is(err, holdfast.ErrStore):
			return nil, fmt.Errorf("leaving session %s suspended: %w", o.Key, err)
		default:
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, store.ErrStale) {
				m.log.Warn("the memory of a session is lost: its suspend note cannot be left", "session", o.Key, "epoch", o.Epoch, "err", err)
			}
			rest = append(rest, o)
		}
	}
	return rest, nil
}

// cloned reports whether the host is a copy of another one.
func (m *Manager) cloned() bool { return m.deps.Cloned != nil && m.deps.Cloned() }
