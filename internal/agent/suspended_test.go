package agent

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast"
	"holdfast/internal/config"
	"holdfast/internal/move"
	"holdfast/internal/store"
	"holdfast/internal/store/memory"
)

// kept is a mover with images on its shelf, each of 1000 bytes before it is sealed.
func kept(t *testing.T, keys ...holdfast.SessionKey) (*mover, map[holdfast.SessionKey]holdfast.Suspended) {
	t.Helper()
	c := config.Default()
	c.DataDir = t.TempDir()
	a := newAgent(c, Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, nil, nil)
	a.node, a.metrics = "n1", prometheus.NewRegistry()
	shelf, err := a.openShelf()
	if err != nil {
		t.Fatal(err)
	}
	m := &mover{node: "n1", store: memory.New(1), log: a.log, shelf: shelf}
	lease, _, err := m.store.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	all := map[holdfast.SessionKey]holdfast.Suspended{}
	for i, key := range keys {
		o, err := m.store.Claim(t.Context(), holdfast.Owner{Key: key, Node: "n1", State: holdfast.Claimed}, lease)
		if err != nil {
			t.Fatal(err)
		}
		image := t.TempDir()
		if err := os.WriteFile(filepath.Join(image, "pages.img"), make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-len(keys)) * time.Hour) // the first is the oldest
		s := holdfast.Suspended{Key: key, Epoch: o.Epoch, Node: "n1", TakenAt: at, Until: at.Add(shelf.bounds.Age), Bytes: 1000}
		if err := shelf.Put(t.Context(), move.Label{Key: key, Epoch: o.Epoch, TakenAt: at}, image); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(shelf.dir, fmt.Sprintf("%s@%d", key, o.Epoch)), at, at); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.store.Suspend(t.Context(), o, string(text)); err != nil {
			t.Fatal(err)
		}
		all[key] = s
	}
	return m, all
}

// have checks which sessions have an image, and which are in the store.
func (m *mover) have(t *testing.T, images, notes string) {
	t.Helper()
	var on, in []string
	list, err := m.shelf.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range list {
		on = append(on, string(k.Key))
	}
	all, err := suspendedAll(t.Context(), m.store)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		in = append(in, string(s.Key))
	}
	if got := strings.Join(on, " "); got != images {
		t.Errorf("images of %q, want %q", got, images)
	}
	if got := strings.Join(in, " "); got != notes {
		t.Errorf("in the store are %q, want %q", got, notes)
	}
}

func (m *mover) dropped(why string) float64 {
	return testutil.ToFloat64(m.shelf.drops.WithLabelValues(why))
}

func TestSuspendedExpire(t *testing.T) {
	m, all := kept(t, "a", "b")
	m.tend(t.Context(), time.Now())
	m.have(t, "a b", "a b")
	m.tend(t.Context(), all["a"].Until.Add(time.Second))
	m.have(t, "b", "b")
	if m.dropped(move.TooOld) != 1 {
		t.Errorf("%v are counted", m.dropped(move.TooOld))
	}
	// Another node only forgets it, and later.
	m.node = "n2"
	m.shelf.Shelf.Drop(t.Context(), "b", all["b"].Epoch)
	m.tend(t.Context(), all["b"].Until.Add(lateNote/2))
	m.have(t, "", "b")
	m.tend(t.Context(), all["b"].Until.Add(lateNote+time.Second))
	m.have(t, "", "")
}

func TestSuspendedMakeRoom(t *testing.T) {
	m, _ := kept(t, "a", "b", "c")
	list, err := m.shelf.List()
	if err != nil {
		t.Fatal(err)
	}
	m.shelf.bounds.Space = 3 * list[0].Bytes
	m.makeRoom(t.Context(), 0)
	m.have(t, "a b c", "a b c")
	m.makeRoom(t.Context(), 1)
	m.have(t, "b c", "b c")
	if m.dropped(move.TooMuch) != 1 {
		t.Errorf("%v are counted", m.dropped(move.TooMuch))
	}
}

// What an agent did not come to tell the store is dropped; while the store is away
// nothing is.
func TestSuspendedUnknown(t *testing.T) {
	m, all := kept(t, "a", "b")
	if err := m.store.DropNote(t.Context(), store.Note{Name: store.SuspendedNotes + "a"}); err != nil {
		t.Fatal(err)
	}
	m.store.(*memory.Store).SetDown(true)
	m.tend(t.Context(), time.Now())
	m.store.(*memory.Store).SetDown(false)
	m.have(t, "a b", "b")
	m.tend(t.Context(), all["a"].TakenAt.Add(unknownImage/2))
	m.have(t, "a b", "b")
	m.tend(t.Context(), time.Now())
	m.have(t, "b", "b")
	if m.dropped(move.Unknown) != 1 {
		t.Errorf("%v are counted", m.dropped(move.Unknown))
	}
}

func TestImageKey(t *testing.T) {
	c := config.Default()
	c.DataDir = t.TempDir()
	key, err := imageKey(c)
	if err != nil || !strings.HasPrefix(key, "AGE-SECRET-KEY-") {
		t.Fatalf("%v", err)
	}
	if again, err := imageKey(c); again != key || err != nil {
		t.Errorf("it is another one: %v", err)
	}
	made := filepath.Join(c.DataDir, "images.key")
	if fi, err := os.Stat(made); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	c.Moving.Suspended.KeyFile = made
	if err := os.Chmod(made, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := imageKey(c); err == nil || !strings.Contains(holdfast.HintOf(err), "chmod 600") || strings.Contains(err.Error(), key) {
		t.Errorf("that others can read: %v", err)
	}
	c.Moving.Suspended.KeyFile = filepath.Join(c.DataDir, "none")
	if _, err := imageKey(c); err == nil {
		t.Error("a key was made where one is named")
	}
}
