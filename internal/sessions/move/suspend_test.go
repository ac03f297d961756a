package move

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
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
)

// stored returns a Mover whose store has an image of each session, of 1000 bytes
// before encryption.
func stored(t *testing.T, keys ...holdfast.SessionKey) (*Mover, map[holdfast.SessionKey]holdfast.Suspended) {
	t.Helper()
	return storedIn(t, memstore.New(1), keys...)
}

func storedIn(t *testing.T, in *memstore.Store, keys ...holdfast.SessionKey) (*Mover, map[holdfast.SessionKey]holdfast.Suspended) {
	t.Helper()
	dir := t.TempDir()
	o := Options{
		Node: "n1", Store: in, MaxImage: 4 << 30, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Suspended: SuspendOptions{
			Dir: filepath.Join(dir, "suspended"), KeyFile: filepath.Join(dir, "images.key"), MakeKey: true,
			Keep: 7 * 24 * time.Hour, Space: 20 << 30, Timeout: 2 * time.Minute,
		},
	}
	images, err := openSuspendedStore(o)
	if err != nil {
		t.Fatal(err)
	}
	m := &Mover{rates: &rates{},
		o: o, images: images, work: t.TempDir(),
		space: newReservations(), suspendeds: newSuspendedIndex(),
	}
	lease, _, err := m.o.Store.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	all := map[holdfast.SessionKey]holdfast.Suspended{}
	for i, key := range keys {
		o, err := m.o.Store.Claim(t.Context(), holdfast.Owner{Key: key, Node: "n1", State: holdfast.Claimed}, lease)
		if err != nil {
			t.Fatal(err)
		}
		image := t.TempDir()
		if err := os.WriteFile(filepath.Join(image, "pages.img"), make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-len(keys)) * time.Hour) // the first is the oldest
		s := holdfast.Suspended{Key: key, Epoch: o.Epoch, Node: "n1", TakenAt: at, Until: at.Add(images.limits.Age), Bytes: 1000}
		if err := images.Put(t.Context(), Label{Key: key, Epoch: o.Epoch, TakenAt: at}, image); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(images.o.Dir, fmt.Sprintf("%s@%d", key, o.Epoch)), at, at); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.o.Store.Suspend(t.Context(), o, string(text)); err != nil {
			t.Fatal(err)
		}
		all[key] = s
	}
	return m, all
}

// have checks which sessions have an image, and which have a record in the store.
func (m *Mover) have(t *testing.T, images, notes string) {
	t.Helper()
	var on, in []string
	list, err := m.images.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range list {
		on = append(on, string(k.Key))
	}
	all, err := ListSuspended(t.Context(), m.o.Store)
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
		t.Errorf("records of %q, want %q", got, notes)
	}
}

func (m *Mover) dropped(why string) float64 {
	return testutil.ToFloat64(m.images.drops.WithLabelValues(why))
}

func TestSuspendedExpire(t *testing.T) {
	m, all := stored(t, "a", "b")
	m.sweep(t.Context(), time.Now())
	m.have(t, "a b", "a b")
	m.sweep(t.Context(), all["a"].Until.Add(time.Second))
	m.have(t, "b", "b")
	if m.dropped(Expired) != 1 {
		t.Errorf("the counter is %v", m.dropped(Expired))
	}
	// Another node removes only the record, and later.
	m.o.Node = "n2"
	m.images.ImageStore.Drop(t.Context(), Label{Key: "b", Epoch: all["b"].Epoch})
	m.sweep(t.Context(), all["b"].Until.Add(recordGrace/2))
	m.have(t, "", "b")
	m.sweep(t.Context(), all["b"].Until.Add(recordGrace+time.Second))
	m.have(t, "", "")
}

// An agent that ended between an image and its record has left a complete image.
func TestSavedWithoutARecord(t *testing.T) {
	m, all := stored(t, "a")
	if err := m.o.Store.DropNote(t.Context(), store.Note{Name: store.SuspendedNotes + "a"}); err != nil {
		t.Fatal(err)
	}
	o := holdfast.Owner{Key: "a", Epoch: all["a"].Epoch, Template: "kept"}
	if s, ok := m.Saved(t.Context(), o); !ok || s.Epoch != o.Epoch || s.Node != "n1" || s.Template != "kept" || s.Bytes < 1000 || !s.Until.After(s.TakenAt) {
		t.Errorf("%v, %+v", ok, s)
	}
	for _, other := range []holdfast.Owner{{Key: "a", Epoch: o.Epoch + 1}, {Key: "b", Epoch: o.Epoch}} {
		if s, ok := m.Saved(t.Context(), other); ok {
			t.Errorf("%+v has the image %+v", other, s)
		}
	}
}

// An agent was killed between a checkpoint and the end of its transfer. The next agent keeps
// the checkpoint if it is complete and of the same boot, and stores it once.
func TestCompleteCheckpointIsStored(t *testing.T) {
	m, _ := stored(t)
	dir := t.TempDir()
	earlier, err := newCompletes(dir)
	if err != nil {
		t.Fatal(err)
	}
	o := holdfast.Owner{Key: "a", Epoch: 7, Template: "kept"}
	for _, name := range []string{"save-1", "save-2", "complete-another-boot-a@7"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "pages.img"), make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path, err := earlier.mark(filepath.Join(dir, "save-1"), o)
	if err != nil {
		t.Fatal(err)
	}
	if m.completes, err = newCompletes(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || filepath.Join(dir, left[0].Name()) != path {
		t.Errorf("%v are left, %v", left, err)
	}
	if s, ok := m.Saved(t.Context(), holdfast.Owner{Key: "a", Epoch: 8}); ok {
		t.Errorf("another epoch has the image %+v", s)
	}
	for range 2 {
		if s, ok := m.Saved(t.Context(), o); !ok || s.Epoch != 7 || s.Node != "n1" || s.Template != "kept" || s.Bytes < 1000 || !s.Until.After(s.TakenAt) {
			t.Errorf("%v, %+v", ok, s)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%v are left, %v", left, err)
		}
	}
	m.have(t, "a", "")
	// What no session needs is removed.
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	m.dropComplete()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

func TestOldestImagesMakeSpace(t *testing.T) {
	m, _ := stored(t, "a", "b", "c")
	list, err := m.images.List()
	if err != nil {
		t.Fatal(err)
	}
	m.images.limits.Space = 3 * list[0].Bytes
	m.collect(t.Context(), 0, time.Now())
	m.have(t, "a b c", "a b c")
	m.collect(t.Context(), 1, time.Now())
	m.have(t, "b c", "b c")
	if m.dropped(NoSpace) != 1 {
		t.Errorf("the counter is %v", m.dropped(NoSpace))
	}
}

// An image without a record is removed; while the store is unavailable no image is.
func TestSuspendedUnknown(t *testing.T) {
	m, all := stored(t, "a", "b")
	if err := m.o.Store.DropNote(t.Context(), store.Note{Name: store.SuspendedNotes + "a"}); err != nil {
		t.Fatal(err)
	}
	m.o.Store.(*memstore.Store).SetDown(true)
	m.sweep(t.Context(), time.Now())
	m.o.Store.(*memstore.Store).SetDown(false)
	m.have(t, "a b", "b")
	seen := all["a"].TakenAt.Add(unknownGrace / 2)
	for _, now := range []time.Time{seen, seen.Add(unknownGrace - time.Second)} {
		m.sweep(t.Context(), now)
		m.have(t, "a b", "b")
	}
	m.sweep(t.Context(), seen.Add(unknownGrace))
	m.have(t, "b", "b")
	if m.dropped(Unknown) != 1 {
		t.Errorf("the counter is %v", m.dropped(Unknown))
	}
}

// A session that resumes takes its image some time after its claim, which removes the record.
// Meanwhile neither a sweep nor the suspension of another session removes the image.
func TestImageOfAResumeStays(t *testing.T) {
	m, all := stored(t, "a", "b")
	m.suspendeds.begin()
	lease, _, err := m.o.Store.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	o, err := m.o.Store.Claim(t.Context(), holdfast.Owner{Key: "a", Node: "n1", State: holdfast.Claimed}, lease)
	if err != nil {
		t.Fatal(err)
	}
	m.have(t, "a b", "b")
	now := time.Now()
	m.sweep(t.Context(), now)
	m.collect(t.Context(), m.images.limits.Space, now) // the other image makes space
	m.have(t, "a", "")
	if _, err := m.takeSuspended(t.Context(), o, all["a"]); err != nil {
		t.Error(err)
	}
}

// The check of a moved image waits for a store that elects a leader.
func TestFollowsWaitsForTheStore(t *testing.T) {
	in := memstore.New(1000)
	m, all := storedIn(t, in, "a")
	lease, _, err := in.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	o, err := in.Claim(t.Context(), holdfast.Owner{Key: "a", Node: "n1", State: holdfast.Claimed}, lease)
	if err != nil {
		t.Fatal(err)
	}
	in.SetDown(true)
	back := time.AfterFunc(3*followsPause/2, func() { in.SetDown(false) })
	defer back.Stop()
	if ok, err := m.follows(t.Context(), "a", all["a"].Epoch, o.Epoch); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if ok, err := m.follows(t.Context(), "a", all["a"].Epoch-1, o.Epoch); ok || err != nil {
		t.Errorf("an earlier epoch: %v, %v", ok, err)
	}
}

// claimedByOld claims a session like an agent without support for suspended sessions: the
// record stays.
func (m *Mover) claimedByOld(t *testing.T, key holdfast.SessionKey) holdfast.Owner {
	t.Helper()
	lease, _, err := m.o.Store.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	o, err := m.o.Store.Claim(t.Context(), holdfast.Owner{Key: key, Node: "old", State: holdfast.Claimed}, lease)
	if err == nil {
		err = m.o.Store.PutNote(t.Context(), store.SuspendedNotes+string(key), []byte(o.SuspendNote), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// The image of a session that was claimed after it was suspended is removed: when the
// claim is observed, or by a sweep while the session has an owner.
func TestSuspendedAndClaimed(t *testing.T) {
	m, all := stored(t, "a", "b", "c")
	m.indexSuspended(t.Context())
	m.suspendeds.claimed("other", 1000)
	m.suspendeds.claimed("a", all["a"].Epoch) // the epoch that was suspended
	if len(m.suspendeds.claims) != 0 {
		t.Error("a claim of a session that is not suspended is queued")
	}
	o := m.claimedByOld(t, "a")
	if _, err := m.o.Store.Release(t.Context(), o); err != nil { // before the claim is processed
		t.Fatal(err)
	}
	m.suspendeds.claimed("a", o.Epoch)
	m.removeClaimed(t.Context(), <-m.suspendeds.claims)
	m.have(t, "b c", "b c")
	m.claimedByOld(t, "b")
	m.sweep(t.Context(), time.Now())
	m.have(t, "c", "c")
	if m.dropped(superseded) != 2 {
		t.Errorf("the counter is %v", m.dropped(superseded))
	}
	// A claim of the epoch in which the image was taken.
	m.removeClaimed(t.Context(), claim{"c", all["c"].Epoch})
	m.have(t, "c", "c")
}

// Concurrent suspends share the free space.
func TestSuspendsReserveSpace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("this test mounts a file system, as root")
	}
	m, _ := stored(t)
	m.work = t.TempDir()
	if err := unix.Mount("small", m.work, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(m.work, 0); err != nil {
			t.Error(err)
		}
	})
	m.images.limits.Space = 1 << 40
	const each = 40 << 20
	release, onDisk, err := m.reserve(each)
	if err != nil || onDisk {
		t.Fatalf("on disk %v, %v", onDisk, err)
	}
	if _, _, err := m.reserve(each); err == nil || !strings.Contains(err.Error(), "moving.spill") {
		t.Errorf("a second reservation: %v", err)
	}
	m.spill = t.TempDir()
	second, onDisk, err := m.reserve(each)
	if err != nil || !onDisk {
		t.Errorf("on disk %v, %v", onDisk, err)
	}
	release()
	second()
	m.images.limits.Space = each - 1
	if _, _, err := m.reserve(each); err == nil || !strings.Contains(err.Error(), "moving.suspended") {
		t.Errorf("in a store without space: %v", err)
	}
	for device, bytes := range m.space.bytes {
		if bytes != 0 {
			t.Errorf("%d bytes of device %d remain reserved", bytes, device)
		}
	}
}

func TestImageKey(t *testing.T) {
	dir := t.TempDir()
	o := SuspendOptions{KeyFile: filepath.Join(dir, "images.key"), MakeKey: true}
	key, err := imageKey(o)
	if err != nil || !strings.HasPrefix(key, "AGE-SECRET-KEY-") {
		t.Fatalf("%v", err)
	}
	if again, err := imageKey(o); again != key || err != nil {
		t.Errorf("the second call returns another key: %v", err)
	}
	if fi, err := os.Stat(o.KeyFile); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	o.MakeKey = false
	if err := os.Chmod(o.KeyFile, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := imageKey(o); err == nil || !strings.Contains(holdfast.HintOf(err), "chmod 600") || strings.Contains(err.Error(), key) {
		t.Errorf("a key file that the group can read: %v", err)
	}
	o.KeyFile = filepath.Join(dir, "none")
	if _, err := imageKey(o); err == nil {
		t.Error("a key was made although the configuration names the file")
	}
}
