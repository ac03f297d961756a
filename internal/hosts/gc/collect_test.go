package gc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// hosted returns a collector of a model on a disk of the given size. The images of the
// model use a part of it.
func hosted(t *testing.T, c Config, m *model, spinups Spinups, log *slog.Logger, total int64) *Collector {
	t.Helper()
	m.root = t.TempDir()
	store := NewStore(t.TempDir(), log)
	store.file.NoSync = true
	return New(c, Deps{
		Engine: m, Store: store, Spinups: spinups, LockDir: t.TempDir(), Log: log,
		Disk: func(string) (Disk, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return Disk{Total: total, Free: total - m.size()}, nil
		},
	})
}

func imagesPolicy() Config {
	c := DefaultConfig()
	c.MinAge = 0
	c.Rules = []Rule{{Kinds: []Kind{Images}, Pressure: true}}
	return c
}

// TestSpinupsWithoutAPause: spin-ups overlap for ten minutes, each with a new image.
// Deletions cannot wait for an idle host, and the disk never reaches the critical mark.
func TestSpinupsWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		m, spinups := newModel(time.Now()), newCounter()
		const total = 40_000
		c := imagesPolicy()
		c.Enabled, c.Every = true, 5*time.Second
		col := hosted(t, c, m, spinups, log, total)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- col.Run(ctx) }()
		spinups.add(1)
		for i := range 600 {
			spinups.add(1) // the next begins before the last has ended
			spinups.add(-1)
			m.mu.Lock()
			m.now = time.Now()
			m.layerSize[fmt.Sprint(i)] = 100
			m.pull(fmt.Sprintf("job:%d", i), []string{fmt.Sprint(i)}, "")
			used := m.size()
			m.mu.Unlock()
			if used > total*95/100 {
				t.Fatalf("after %d s %d of %d are used:\n%s", i, used, total, out.String())
			}
			time.Sleep(time.Second)
		}
		cancel()
		if err := <-ran; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		cycles, err := col.History(0)
		if err != nil {
			t.Fatal(err)
		}
		deleted := 0
		for _, cy := range cycles {
			for _, o := range cy.Deleted {
				deleted++
				if !o.Forced || o.Reason == "" {
					t.Errorf("%+v", o)
				}
			}
		}
		if said := strings.Count(out.String(), "deleted during spin-ups"); deleted < 150 || said != deleted {
			t.Errorf("%d deleted, %d of them logged", deleted, said)
		}
		if len(m.wrong) > 0 {
			t.Errorf("in use: %v", m.wrong)
		}
	})
}

// TestNothingIsDeletedWhileSomethingSpinsUp: the disk is over the high mark and below
// the critical mark.
func TestNothingIsDeletedWhileSomethingSpinsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, spinups := newModel(time.Now()), newCounter()
		for i := range 90 {
			m.layerSize[fmt.Sprint(i)] = 100
			m.pull(fmt.Sprintf("job:%d", i), []string{fmt.Sprint(i)}, "")
		}
		col := hosted(t, imagesPolicy(), m, spinups, quietLog(), 10_000)
		spinups.add(1)
		go func() {
			time.Sleep(time.Minute)
			m.mu.Lock()
			if len(m.removed) != 0 {
				t.Errorf("removed %v", m.removed)
			}
			m.mu.Unlock()
			spinups.add(-1)
		}()
		cy, err := col.Collect(t.Context(), ByRequest, nil)
		if err != nil {
			t.Fatal(err)
		}
		if time.Duration(cy.Suspended) < time.Minute || len(cy.Deleted) != 15 || cy.After.Free != 2500 {
			t.Errorf("suspended %v, deleted %d, free %d", cy.Suspended, len(cy.Deleted), cy.After.Free)
		}
		s, err := col.Status(t.Context())
		if err != nil || time.Duration(s.Suspended) < time.Minute || s.Level != Roomy || s.Running || s.Last == nil {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// TestLooksAgainBeforeEachRemoval changes an image between the plan and its removal.
func TestLooksAgainBeforeEachRemoval(t *testing.T) {
	setup := func() *model {
		m := newModel(time.Now().Add(-time.Hour))
		m.pull("app:1", []string{"a"}, "")
		return m
	}
	for name, x := range map[string]struct {
		question  int // before which it happens. The plan asks three; the removal asks for the containers and the image twice
		meanwhile func(m *model, id string)
		why       string // "" is deleted
		left      int
	}{
		"nothing":             {4, func(*model, string) {}, "", 0},
		"a container":         {4, func(m *model, id string) { m.create(id, "") }, "uses it now", 1},
		"a container, late":   {7, func(m *model, id string) { m.create(id, "") }, "refuses", 1},
		"a container, then":   {6, func(m *model, id string) { m.create(id, "") }, "uses it now", 1},
		"a name":              {4, func(m *model, id string) { m.tag("app:2", id) }, "app:2", 1},
		"a name, late":        {7, func(m *model, id string) { m.tag("app:2", id) }, "app:2", 1},
		"removed":             {4, func(m *model, id string) { delete(m.images, id) }, goneAlready, 0},
		"the name moved":      {4, func(m *model, _ string) { m.pull("app:1", []string{"b"}, "") }, "", 1},
		"the name moved late": {7, func(m *model, _ string) { m.pull("app:1", []string{"b"}, "") }, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := setup()
			id := sortedKeys(m.images)[0]
			c := imagesPolicy()
			c.Rules[0].Pressure = false
			col := hosted(t, c, m, nil, quietLog(), 1000)
			asked := 0
			m.between = func(m *model) {
				if asked++; asked == x.question {
					x.meanwhile(m, id)
				}
			}
			if err := col.d.Store.Note(Uses{Last: map[string]time.Time{id: time.Now().Add(-time.Hour)}}); err != nil {
				t.Fatal(err)
			}
			cy, err := col.Collect(t.Context(), ByRequest, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(m.images) != x.left || len(m.wrong) > 0 {
				t.Errorf("%d images are left, wrong: %v", len(m.images), m.wrong)
			}
			switch {
			case x.why == "" && len(cy.Skipped) > 0:
				t.Errorf("skipped %+v", cy.Skipped)
			case x.why != "" && (len(cy.Skipped) != 1 || !strings.Contains(cy.Skipped[0].Reason, x.why)):
				t.Errorf("skipped %+v", cy.Skipped)
			}
		})
	}
}

// TestWhatStaysInTheTrashEndsNothing: a file cannot be freed, and the cycle reports it.
func TestWhatStaysInTheTrashEndsNothing(t *testing.T) {
	m := newModel(time.Now().Add(-time.Hour))
	m.pull("app:1", []string{"a"}, "")
	c := imagesPolicy()
	c.Rules[0].Pressure = false
	col := hosted(t, c, m, nil, quietLog(), 1000)
	m.overlay = true
	if err := os.MkdirAll(filepath.Join(m.root, "image/overlay2/layerdb"), 0o755); err != nil {
		t.Fatal(err)
	}
	stray := newTrash(t, m.root).dir
	for range maxDepth + 3 { // deeper than the collector goes
		stray = filepath.Join(stray, "d")
	}
	if err := os.MkdirAll(stray, 0o755); err != nil {
		t.Fatal(err)
	}
	cy, err := col.Collect(t.Context(), ByRequest, nil)
	if err != nil || len(cy.Deleted) != 1 || len(cy.Notices) != 1 || !strings.Contains(cy.Notices[0], "free the trash") {
		t.Errorf("%+v, %v", cy, err)
	}
}

func TestAnEngineThatIsAwayEndsTheCycle(t *testing.T) {
	m := newModel(time.Now().Add(-time.Hour))
	for i := range 5 {
		m.pull(fmt.Sprintf("app:%d", i), []string{fmt.Sprint(i)}, "")
	}
	c := imagesPolicy()
	c.Rules[0].Pressure = false
	col := hosted(t, c, m, nil, quietLog(), 1000)
	deleted := 0
	cy, err := col.Collect(t.Context(), ByRequest, func(Outcome, bool) {
		if deleted++; deleted == 2 {
			m.mu.Lock()
			m.down = true
			m.mu.Unlock()
		}
	})
	if !errors.Is(err, holdfast.ErrEngine) || len(cy.Deleted) != 2 || !cy.Ended || cy.Error == "" {
		t.Fatalf("%+v, %v", cy, err)
	}
	m.down = false
	cy, err = col.Collect(t.Context(), ByRequest, nil)
	if err != nil || len(cy.Deleted) != 3 {
		t.Errorf("%+v, %v", cy, err)
	}
	kept, err := col.History(0)
	if err != nil || len(kept) != 2 || kept[1].Error == "" || len(kept[1].Deleted) != 2 {
		t.Errorf("%+v, %v", kept, err)
	}
}

// TestTheDowntimeIsKnownBeforeTheFirstPlan: the engine does not have the events from
// before the collector ran, and the first check detects the gap.
func TestTheDowntimeIsKnownBeforeTheFirstPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(time.Now())
		id := m.pull("app:1", []string{"a"}, "")
		m.activity = func(ctx context.Context, until time.Time) []engine.Activity {
			if until.IsZero() { // the follower receives it later
				select {
				case <-time.After(10 * time.Second):
				case <-ctx.Done():
				}
			}
			return []engine.Activity{{Gap: true, Time: time.Now()}}
		}
		c := imagesPolicy()
		c.Enabled, c.MinAge, c.Rules[0].Pressure = true, time.Hour, false
		col := hosted(t, c, m, nil, quietLog(), 1000)
		past := time.Now().Add(-2 * time.Hour)
		if err := col.d.Store.Note(Uses{Last: map[string]time.Time{id: past}, Seen: past}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- col.Run(ctx) }()
		time.Sleep(30 * time.Minute)
		m.mu.Lock()
		if len(m.removed) != 0 {
			t.Errorf("removed %v", m.removed)
		}
		m.mu.Unlock()
		time.Sleep(time.Hour)
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if len(m.removed) != 1 {
			t.Errorf("removed %v in the end", m.removed)
		}
	})
}

// TestAGapBetweenPlanAndRemoval: after the gap the image counts as possibly used.
func TestAGapBetweenPlanAndRemoval(t *testing.T) {
	m := newModel(time.Now())
	id := m.pull("app:1", []string{"a"}, "")
	c := imagesPolicy()
	c.MinAge, c.Rules[0].Pressure = time.Minute, false
	col := hosted(t, c, m, nil, quietLog(), 1000)
	if err := col.d.Store.Note(Uses{Last: map[string]time.Time{id: time.Now().Add(-time.Hour)}}); err != nil {
		t.Fatal(err)
	}
	asked := 0
	m.between = func(*model) {
		if asked++; asked == 3 { // in the middle of the plan, which has read the uses by then
			col.tracker.note(t.Context(), engine.Activity{Gap: true, Time: time.Now()})
		}
	}
	cy, err := col.Collect(t.Context(), ByRequest, nil)
	if err != nil || len(m.images) != 1 || len(cy.Skipped) != 1 || !strings.Contains(cy.Skipped[0].Reason, "may have been") {
		t.Errorf("%+v, %v", cy, err)
	}
}

// TestAFullDiskDoesNotStopItsCollection: no file can be written, and images are removed
// nevertheless, also images without a recorded use.
func TestAFullDiskDoesNotStopItsCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(time.Now())
		for i := range 90 {
			m.layerSize[fmt.Sprint(i)] = 100
			m.pull(fmt.Sprintf("job:%d", i), []string{fmt.Sprint(i)}, "")
		}
		c := imagesPolicy()
		c.Enabled, c.MinAge = true, time.Minute
		col := hosted(t, c, m, nil, quietLog(), 9000)
		col.d.Store.full = unix.ENOSPC
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- col.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		cancel()
		<-ran                     // its error: the uses could not be saved
		if len(m.removed) != 23 { // until 6750 bytes are used
			t.Errorf("%d were removed", len(m.removed))
		}
	})
}

func TestUnknownMeansNow(t *testing.T) {
	m := newModel(time.Now().Add(-time.Hour))
	m.pull("app:1", []string{"a"}, "")
	c := imagesPolicy()
	c.Rules[0].Pressure, c.MinAge = false, time.Minute
	col := hosted(t, c, m, nil, quietLog(), 1000)
	if p, err := col.Plan(t.Context()); err != nil || len(p.Deletions) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	u, err := col.d.Store.Uses()
	if err != nil || len(u.Last) != 1 {
		t.Fatalf("%v, %v", u, err)
	}
	for _, last := range u.Last {
		if time.Since(last) > time.Minute {
			t.Errorf("it was used %v ago", time.Since(last))
		}
	}
}

// TestWhatIsKeptForNowStays: images on the additional list stay. While the list cannot be
// read, all images stay.
func TestWhatIsKeptForNowStays(t *testing.T) {
	m := newModel(time.Now().Add(-time.Hour))
	kept, other := m.pull("kept:1", []string{"a"}, ""), m.pull("other:1", []string{"b"}, "")
	c := imagesPolicy()
	c.Rules[0].Pressure = false
	col := hosted(t, c, m, nil, quietLog(), 1000)
	broken := errors.New("the list cannot be read")
	col.d.Keep = func() ([]string, error) { return nil, broken }
	if cy, err := col.Collect(t.Context(), ByRequest, nil); !errors.Is(err, broken) || len(m.removed) != 0 {
		t.Errorf("%+v, %v", cy, err)
	}
	col.d.Keep = func() ([]string, error) { return []string{"kept:*"}, nil }
	if cy, err := col.Collect(t.Context(), ByRequest, nil); err != nil || !slices.Equal(m.removed, []string{other}) || m.images[kept] == nil {
		t.Errorf("%+v, %v, removed %v", cy, err, m.removed)
	}
}

// TestANetworkInDailyUseIsNoLeak: the network was created long ago, and no container
// names it at the time of the check.
func TestANetworkInDailyUseIsNoLeak(t *testing.T) {
	m := newModel(time.Now().Add(-100 * time.Hour))
	m.pull("app:1", []string{"a"}, "")
	used, leaked := m.addNetwork(), m.addNetwork()
	c := imagesPolicy()
	c.Rules = []Rule{{Kinds: []Kind{Networks}, KeepFor: time.Hour}}
	col := hosted(t, c, m, nil, quietLog(), 1000)
	planned := func(want ...string) {
		t.Helper()
		p, err := col.Plan(t.Context())
		if err != nil || !slices.Equal(ids(p), append([]string{}, want...)) {
			t.Errorf("planned %v, %v, want %v", ids(p), err, want)
		}
	}
	planned() // no use of either is known
	// Half an hour ago one had a container, and the other had none.
	long, lately := time.Now().Add(-2*time.Hour), time.Now().Add(-30*time.Minute)
	id := m.create(sortedKeys(m.images)[0], used)
	if err := col.tracker.store.Forget(func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	s := m.state()
	for i := range s.Networks {
		s.Networks[i].LastUse = long
	}
	s.Now = lately
	col.tracker.settle(s)
	delete(m.containers, id)
	planned(leaked)
}

// TestUsesOfNetworksAndVolumesAreKept if the policy applies to them.
func TestUsesOfNetworksAndVolumesAreKept(t *testing.T) {
	at := time.Now().Round(0)
	for _, x := range []struct {
		kinds []Kind
		want  []string
	}{
		{[]Kind{Images}, nil},
		{[]Kind{Networks}, []string{networkKey("n")}},
		{[]Kind{Volumes}, []string{volumeKey("v")}},
	} {
		tr := &tracker{engine: newModel(at), store: NewStore(t.TempDir(), quietLog()), policy: policy(Rule{Kinds: x.kinds}), log: quietLog()}
		tr.note(t.Context(), engine.Activity{Time: at, Action: "connect", Network: "n"})
		tr.note(t.Context(), engine.Activity{Time: at, Action: "unmount", Volume: "v"})
		u, err := tr.last()
		if err != nil || !slices.Equal(slices.Sorted(maps.Keys(u.Last)), x.want) {
			t.Errorf("%v: %v, %v", x.kinds, u.Last, err)
		}
		for _, key := range x.want {
			if !u.Last[key].Equal(at) || !tr.usedSince(key, at.Add(-time.Second), at) {
				t.Errorf("%s was used at %v", key, u.Last[key])
			}
		}
	}
}

// TestManyUsesAreWrittenOrCountAsMissed: more uses arrive at once than fit in memory.
func TestManyUsesAreWrittenOrCountAsMissed(t *testing.T) {
	for _, full := range []error{nil, unix.ENOSPC} {
		store := NewStore(t.TempDir(), quietLog())
		store.file.NoSync, store.full = true, full
		tr := &tracker{engine: newModel(noon), store: store, log: quietLog()}
		begin := time.Now()
		for i := range maxNews + 1 {
			tr.used(fmt.Sprint("sha256:", i), noon)
		}
		u, err := tr.last()
		if err != nil {
			t.Fatal(err)
		}
		if full == nil && (len(u.Last) != maxNews+1 || !u.Blind.IsZero()) {
			t.Errorf("%d uses are known, blind %v", len(u.Last), u.Blind)
		}
		if full != nil && u.Blind.Before(begin) {
			t.Errorf("%d uses are known, and nothing counts as missed", len(u.Last))
		}
		if !tr.usedSince("sha256:0", begin, begin) {
			t.Error("a use that was dropped does not count while a plan is carried out")
		}
	}
}

// TestImagesOfNamesAreKeptForAMoment: the engine is asked once for a burst of events, and again when the name may
// have moved.
func TestImagesOfNamesAreKeptForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(time.Now())
		asked := 0
		m.between = func(*model) { asked++ }
		old := m.pull("app:1", []string{"a"}, "")
		tr := &tracker{engine: m, store: NewStore(t.TempDir(), quietLog()), log: quietLog()}
		use := func(want string) {
			t.Helper()
			if key := tr.keyOf(t.Context(), engine.Activity{Action: "start", Image: "app:1"}); key != want {
				t.Errorf("key %q, want %q", key, want)
			}
		}
		for range 100 {
			use(old)
		}
		if asked != 1 {
			t.Errorf("the engine was asked %d times", asked)
		}
		moved := m.pull("app:1", []string{"b"}, "")
		if moved == old {
			t.Fatal("the name has not moved")
		}
		tr.keyOf(t.Context(), engine.Activity{Action: "tag", Image: moved})
		use(moved)
		moved = m.pull("app:1", []string{"c"}, "") // without an event
		time.Sleep(idsKept + 1)
		use(moved)
	})
}

func TestTrackerKeepsUsesAndGaps(t *testing.T) {
	m := newModel(time.Now())
	id := m.pull("app:1", []string{"a"}, "")
	tr := &tracker{engine: m, store: NewStore(t.TempDir(), quietLog()), log: quietLog()}
	at := time.Now().Add(-time.Minute).Round(0)
	tr.note(t.Context(), engine.Activity{Time: at, Action: "create", Image: "app:1"})
	tr.note(t.Context(), engine.Activity{Time: at.Add(-time.Hour), Action: "create", Image: id})
	tr.note(t.Context(), engine.Activity{Time: at, Action: "create", Image: "gone:1"})
	if !tr.usedSince(id, at.Add(-time.Second), at) || tr.usedSince(id, at, at) {
		t.Error("the use was not seen")
	}
	if err := tr.flush(); err != nil {
		t.Fatal(err)
	}
	tr.note(t.Context(), engine.Activity{Gap: true, Time: at.Add(time.Second)})
	u, err := tr.last()
	if err != nil || len(u.Last) != 1 || !u.Last[id].Equal(at) || !u.Blind.Equal(at.Add(time.Second)) || !u.Seen.Equal(u.Blind) {
		t.Errorf("%+v, %v", u, err)
	}
	if !tr.usedSince(id, at.Add(-time.Second), at.Add(time.Minute)) {
		t.Error("it is forgotten once it is on disk")
	}
	if !tr.usedSince("other", at, at) || tr.usedSince("other", at, at.Add(time.Minute)) || tr.usedSince("other", at.Add(time.Minute), at) {
		t.Error("a gap counts that the plan did not know and that is young enough")
	}
}
