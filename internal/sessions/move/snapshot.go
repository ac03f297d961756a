package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/runsc"
	"holdfast/internal/platform/store"
)

// A snapshot is the image of a session that goes on. A named one is encrypted in the image
// store, and has a note with its name. The image of a fork has neither: it is in memory until
// its children have started, and the next agent of the node removes it.

// SnapshotGrace is how long a snapshot may have no record: that is written after the image.
const SnapshotGrace = 2 * time.Minute

// Copy implements session.Mover.
func (m *Mover) Copy(ctx context.Context, d Departing, s holdfast.MemorySnapshot) (holdfast.MemorySnapshot, error) {
	if s.Until.IsZero() && d.OnDisk {
		return s, errors.New("moving.staged has no space for its image")
	}
	s.Key, s.Epoch, s.Template, s.Node = d.Owner.Key, d.Owner.Epoch, d.Owner.Template, m.o.Node
	begun := time.Now()
	dir, size, err := m.save(ctx, d, m.runsc.Copy)
	if err != nil {
		return s, err
	}
	s.TakenAt, s.Bytes, s.Pause = begun.UTC(), size, holdfast.Millis(time.Since(begun))
	m.metrics.observe(partCopy, begun)
	if s.Until.IsZero() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.copies[s.Name] = receivedImage{labelOf(s), dir, begun}
		return s, nil
	}
	s.Shared = m.images.shared
	// The name is free. A snapshot that was removed on another node may have left its file.
	if err = m.images.Drop(ctx, labelOf(s)); err == nil {
		err = m.putSuspended(ctx, labelOf(s), size, dir)
	}
	return s, errors.Join(err, os.RemoveAll(dir))
}

func labelOf(s holdfast.MemorySnapshot) Label {
	return Label{Key: s.Key, Epoch: s.Epoch, Template: s.Template, TakenAt: s.TakenAt, Bytes: s.Bytes, Snapshot: s.Name}
}

// DropCopy implements session.Mover.
func (m *Mover) DropCopy(name holdfast.SessionKey) {
	m.mu.Lock()
	image := m.copies[name]
	delete(m.copies, name)
	m.mu.Unlock()
	m.remove(image)
}

// openSnapshot gets the image of a snapshot into dir, for the session that is to start from it.
func (m *Mover) openSnapshot(ctx context.Context, o holdfast.Owner, s holdfast.MemorySnapshot, dir string) (l Label, err error) {
	m.mu.Lock()
	image, ok := m.copies[s.Name]
	m.mu.Unlock()
	read := func(r io.Reader) (err error) {
		l, err = Unpack(r, dir, m.o.MaxImage, func(got Label) error {
			if got.Snapshot != s.Name || got.Epoch != s.Epoch {
				return fmt.Errorf("%w: it is snapshot %s of epoch %d", ErrTorn, got.Snapshot, got.Epoch)
			}
			return nil
		})
		if err == nil {
			_, err = io.Copy(io.Discard, r) // data after the archive is authenticated, too
		}
		return err
	}
	switch {
	case ok:
		return image.Label, runsc.Link(image.dir, dir)
	case s.Shared || s.Node == m.o.Node:
		if m.images == nil {
			return l, m.noImages
		}
		return l, m.images.Read(ctx, s.Name, s.Epoch, read)
	case m.peers == nil:
		return l, fmt.Errorf("node %s has the snapshot, and this node is not part of a fleet", s.Node)
	}
	return l, m.peers.CopyImage(ctx, s, o.Key, o.Epoch, read)
}

// GiveSnapshot writes a snapshot to w, for another node. holdfast.ErrNotFound.
func (m *Mover) GiveSnapshot(ctx context.Context, name holdfast.SessionKey, epoch holdfast.Epoch, w io.Writer) error {
	m.mu.Lock()
	image, ok := m.copies[name]
	m.mu.Unlock()
	switch {
	case ok:
		return Pack(w, image.Label, image.dir)
	case m.images == nil:
		return fmt.Errorf("%w: %w", holdfast.ErrNotFound, m.noImages)
	}
	return m.images.Read(ctx, name, epoch, func(r io.Reader) error {
		_, err := io.Copy(w, r)
		return err
	})
}

// SnapshotRecord is a named snapshot as the store has it.
type SnapshotRecord struct {
	holdfast.MemorySnapshot
	Note store.Note
}

// ListSnapshots returns the records of all snapshots, by name. It omits those that cannot be
// decoded.
func ListSnapshots(ctx context.Context, s store.Store) ([]SnapshotRecord, error) {
	notes, err := s.ListNotes(ctx, store.SnapshotNotes)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var out []SnapshotRecord
	for _, n := range notes {
		r := SnapshotRecord{Note: n}
		if json.Unmarshal(n.Value, &r.MemorySnapshot) == nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// DropSnapshot removes a snapshot: first its record, so that no session starts from it, and
// then its image if this node can reach it.
func (m *Mover) DropSnapshot(ctx context.Context, r SnapshotRecord) error {
	err := error(nil)
	if r.Note.Name != "" {
		err = m.o.Store.DropNote(ctx, r.Note)
	}
	if err == nil && m.images != nil && (r.Shared || r.Node == m.o.Node) {
		err = m.images.Drop(ctx, labelOf(r.MemorySnapshot))
	}
	if err != nil {
		return fmt.Errorf("remove snapshot %s: %w", r.Name, err)
	}
	return nil
}

// sweepSnapshots removes snapshots that have expired, and files that no record refers to: the
// agent ended before it wrote one, or another node has removed the record.
func (m *Mover) sweepSnapshots(ctx context.Context, now time.Time) {
	records, err := ListSnapshots(ctx, m.o.Store)
	if err != nil {
		return // until the next sweep
	}
	known := map[string]bool{}
	var drop []SnapshotRecord
	for _, r := range records {
		own := r.Node == m.o.Node
		if own && now.After(r.Until) || now.After(r.Until.Add(recordGrace)) {
			drop = append(drop, r)
		}
		known[fmt.Sprint(r.Name, "@", r.Epoch)] = true
	}
	all, _ := m.images.List() // collect has logged an error
	_, files := splitSnapshots(all)
	for _, f := range files {
		name := holdfast.SessionKey(strings.TrimPrefix(string(f.Key), snapshotPrefix))
		if !known[fmt.Sprint(name, "@", f.Epoch)] && now.Sub(f.TakenAt) >= SnapshotGrace {
			drop = append(drop, SnapshotRecord{MemorySnapshot: holdfast.MemorySnapshot{Name: name, Epoch: f.Epoch, Node: m.o.Node}})
		}
	}
	for _, r := range drop {
		if err := m.DropSnapshot(ctx, r); err != nil {
			m.o.Log.Warn("a snapshot cannot be removed", "snapshot", r.Name, "err", err)
			continue
		}
		m.o.Log.Info("a snapshot is removed", "snapshot", r.Name, "until", r.Until)
	}
}

// splitSnapshots separates snapshots from the images of suspended sessions.
func splitSnapshots(all []StoredImage) (suspended, snapshots []StoredImage) {
	for _, i := range all {
		if strings.HasPrefix(string(i.Key), snapshotPrefix) {
			snapshots = append(snapshots, i)
		} else {
			suspended = append(suspended, i)
		}
	}
	return suspended, snapshots
}

// snapshotBytes returns the size of the snapshots in the directory of this node. That of a
// Remote is not limited.
func (m *Mover) snapshotBytes() (total int64) {
	all, _ := m.images.List() // an unreadable directory counts as empty
	_, snapshots := splitSnapshots(all)
	for _, s := range snapshots {
		total += s.Bytes
	}
	return total
}
