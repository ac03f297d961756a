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
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/move"
	"holdfast/test/memstore"
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
	m := &mover{
		node: "n1", store: memstore.New(1), log: a.log, shelf: shelf,
		rooms: newRooms(), asleep: newSleepers(),
	}
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
	m.store.(*memstore.Store).SetDown(true)
	m.tend(t.Context(), time.Now())
	m.store.(*memstore.Store).SetDown(false)
	m.have(t, "a b", "b")
	m.tend(t.Context(), all["a"].TakenAt.Add(unknownImage/2))
	m.have(t, "a b", "b")
	m.tend(t.Context(), time.Now())
	m.have(t, "b", "b")
	if m.dropped(move.Unknown) != 1 {
		t.Errorf("%v are counted", m.dropped(move.Unknown))
	}
}

// claimedByOld has an agent claim a session that knows of no suspended ones: it leaves
// the note.
func (m *mover) claimedByOld(t *testing.T, key holdfast.SessionKey) holdfast.Owner {
	t.Helper()
	lease, _, err := m.store.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	o, err := m.store.Claim(t.Context(), holdfast.Owner{Key: key, Node: "old", State: holdfast.Claimed}, lease)
	if err == nil {
		err = m.store.PutNote(t.Context(), store.SuspendedNotes+string(key), []byte(o.Left), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// What was left of a session that has lived since is dropped, as soon as its claim is
// heard of, or while it lives.
func TestSuspendedAndClaimed(t *testing.T) {
	m, all := kept(t, "a", "b", "c")
	m.watchOver(t.Context())
	m.asleep.claimed("other", 1000)
	m.asleep.claimed("a", all["a"].Epoch) // the life that was suspended
	if len(m.asleep.woken) != 0 {
		t.Error("a claim of nobody who sleeps is looked at")
	}
	o := m.claimedByOld(t, "a")
	if _, err := m.store.Release(t.Context(), o); err != nil { // long before anybody looks
		t.Fatal(err)
	}
	m.asleep.claimed("a", o.Epoch)
	m.expireClaimed(t.Context(), <-m.asleep.woken)
	m.have(t, "b c", "b c")
	m.claimedByOld(t, "b")
	m.tend(t.Context(), time.Now())
	m.have(t, "c", "c")
	if m.dropped(superseded) != 2 {
		t.Errorf("%v are counted", m.dropped(superseded))
	}
	// A claim that was before the life of which the image is.
	m.expireClaimed(t.Context(), claimedKey{"c", all["c"].Epoch})
	m.have(t, "c", "c")
}

// What is suspended side by side shares the room.
func TestSuspendsReserveRoom(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("this test mounts a file system, as root")
	}
	m, _ := kept(t)
	m.work = t.TempDir()
	if err := unix.Mount("small", m.work, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(m.work, 0); err != nil {
			t.Error(err)
		}
	})
	m.shelf.bounds.Space = 1 << 40
	const each = 40 << 20
	release, onDisk, err := m.reserve(each)
	if err != nil || onDisk {
		t.Fatalf("on disk %v, %v", onDisk, err)
	}
	if _, _, err := m.reserve(each); err == nil || !strings.Contains(err.Error(), "moving.spill") {
		t.Errorf("a second one: %v", err)
	}
	m.spill = t.TempDir()
	second, onDisk, err := m.reserve(each)
	if err != nil || !onDisk {
		t.Errorf("on disk %v, %v", onDisk, err)
	}
	release()
	second()
	m.shelf.bounds.Space = each - 1
	if _, _, err := m.reserve(each); err == nil || !strings.Contains(err.Error(), "moving.suspended") {
		t.Errorf("on a shelf without room: %v", err)
	}
	for device, bytes := range m.rooms.taken {
		if bytes != 0 {
			t.Errorf("%d bytes of device %d stay reserved", bytes, device)
		}
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
