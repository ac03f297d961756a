package move

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// A snapshot can be read often, is not removed for space, and ends with its time, or when no
// record refers to it.
func TestSnapshots(t *testing.T) {
	m, _ := stored(t, "a")
	now := time.Now()
	snapshot := func(name holdfast.SessionKey, life time.Duration, recorded bool) holdfast.MemorySnapshot {
		t.Helper()
		s := holdfast.MemorySnapshot{Name: name, Key: "a", Epoch: 9, Node: "n1", Template: "kept", TakenAt: now, Until: now.Add(life)}
		dir := t.TempDir()
		text, err := json.Marshal(s)
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "pages.img"), make([]byte, 1000), 0o600))
		if err == nil {
			err = m.images.Put(t.Context(), labelOf(s), dir)
		}
		if err == nil && recorded {
			err = m.o.Store.PutNote(t.Context(), store.SnapshotNotes+string(name), text, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	v1 := snapshot("v1", time.Hour, true)
	snapshot("a", 48*time.Hour, true) // the name of a session, and its image's epoch
	snapshot("lost", 48*time.Hour, false)
	for range 2 {
		dir := filepath.Join(t.TempDir(), "image")
		if l, err := m.openSnapshot(t.Context(), holdfast.Owner{Key: "b", Epoch: 20}, v1, dir); err != nil || l.Key != "a" || l.Epoch != 9 || l.Snapshot != "v1" {
			t.Errorf("%+v, %v", l, err)
		}
		if fi, err := os.Stat(filepath.Join(dir, "pages.img")); err != nil || fi.Size() != 1000 {
			t.Errorf("%v, %v", fi, err)
		}
	}
	other := v1
	other.Epoch = 8
	if _, err := m.openSnapshot(t.Context(), holdfast.Owner{}, other, filepath.Join(t.TempDir(), "image")); !errors.Is(err, holdfast.ErrNotFound) {
		t.Error(err)
	}
	if err := m.GiveSnapshot(t.Context(), "v1", 9, io.Discard); err != nil {
		t.Error(err)
	}
	each := m.snapshotBytes() / 3
	m.images.limits.Space = 4 * each
	if _, _, err := m.reserve(2 * each); err == nil {
		t.Error("space was reserved that snapshots have")
	}
	m.collect(t.Context(), each, now)
	m.have(t, "snapshot.a snapshot.lost snapshot.v1", "")
	m.sweepSnapshots(t.Context(), time.Now().Add(SnapshotGrace))
	m.have(t, "snapshot.a snapshot.v1", "")
	m.sweepSnapshots(t.Context(), v1.Until.Add(time.Second))
	m.have(t, "snapshot.a", "")
	all, err := ListSnapshots(t.Context(), m.o.Store)
	if err != nil || len(all) != 1 || all[0].Name != "a" {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := m.DropSnapshot(t.Context(), all[0]); err != nil {
		t.Error(err)
	}
	m.have(t, "", "")
}
