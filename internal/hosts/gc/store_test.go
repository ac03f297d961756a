package gc

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"holdfast"
)

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestUsesSurvive(t *testing.T) {
	dir := t.TempDir()
	s := NewStore(dir, quietLog())
	if u, err := s.Uses(); err != nil || len(u.Last) != 0 {
		t.Fatalf("at first %v, %v", u, err)
	}
	at := func(h int) time.Time { return noon.Add(time.Duration(h) * time.Hour) }
	for _, u := range []Uses{
		{Last: map[string]time.Time{"a": at(5), "b": at(1)}, Seen: at(5)},
		{Last: map[string]time.Time{"a": at(3), "b": at(2)}, Seen: at(4), Blind: at(2)}, // a was used later already
	} {
		if err := s.Note(u); err != nil {
			t.Fatal(err)
		}
	}
	u, err := NewStore(dir, quietLog()).Uses()
	if err != nil || !u.Last["a"].Equal(at(5)) || !u.Last["b"].Equal(at(2)) || !u.Seen.Equal(at(5)) || !u.Blind.Equal(at(2)) {
		t.Errorf("%v, %v", u, err)
	}
	if err := s.Forget(func(k string) bool { return k == "b" }); err != nil {
		t.Fatal(err)
	}
	if u, _ := s.Uses(); len(u.Last) != 1 {
		t.Errorf("%v", u.Last)
	}
}

// TestUsesBeyondTheBoundCountAsMissed: the known uses stay known.
func TestUsesBeyondTheBoundCountAsMissed(t *testing.T) {
	s := NewStore(t.TempDir(), quietLog())
	s.most = 3
	for range 2 { // the same ones again take no room
		if err := s.Note(Uses{Last: map[string]time.Time{"a": noon, "b": noon, "c": noon}}); err != nil {
			t.Fatal(err)
		}
	}
	if u, err := s.Uses(); err != nil || len(u.Last) != 3 || !u.Blind.IsZero() {
		t.Errorf("%v, %v", u, err)
	}
	before := time.Now().Add(-time.Second)
	later := noon.Add(time.Hour)
	if err := s.Note(Uses{Last: map[string]time.Time{"a": later, "d": later}}); err != nil {
		t.Fatal(err)
	}
	if u, err := s.Uses(); err != nil || len(u.Last) != 3 || !u.Last["a"].Equal(later) || !u.Blind.After(before) {
		t.Errorf("%v, %v", u, err)
	}
}

func TestHistoryIsBoundedAndNewestFirst(t *testing.T) {
	s := NewStore(t.TempDir(), quietLog())
	for i := range 10 {
		c := Cycle{Begun: noon.Add(time.Duration(i) * time.Minute), Planned: i}
		if err := s.SaveCycle(c); err != nil {
			t.Fatal(err)
		}
		c.Ended = true
		if err := s.SaveCycle(c); err != nil { // the same one
			t.Fatal(err)
		}
	}
	got, err := s.Cycles(3)
	if err != nil || len(got) != 3 || got[0].Planned != 9 || !got[0].Ended || got[2].Planned != 7 {
		t.Errorf("%+v, %v", got, err)
	}
	if all, err := s.Cycles(0); err != nil || len(all) != 10 {
		t.Errorf("%d, %v", len(all), err)
	}
}

func TestADamagedFileIsMovedAside(t *testing.T) {
	dir := t.TempDir()
	s := NewStore(dir, quietLog())
	if err := s.SaveHarm(Harm{Suspended: holdfast.Millis(time.Second)}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "gc.db"), []byte("this was never a database, and it is long enough to be read as one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if h, err := s.Harm(); err != nil || h.Suspended != 0 {
		t.Errorf("%v, %v", h, err)
	}
	aside, err := filepath.Glob(filepath.Join(dir, "gc.db.damaged-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("%v, %v", aside, err)
	}
}

func TestSeveralMayWrite(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			s := NewStore(dir, quietLog())
			if err := s.Note(Uses{Last: map[string]time.Time{string(rune('a' + i)): noon}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if u, err := NewStore(dir, quietLog()).Uses(); err != nil || len(u.Last) != 8 {
		t.Errorf("%d uses, %v", len(u.Last), err)
	}
}

func TestHarmTellsBesideFromWithout(t *testing.T) {
	w := newStats()
	begin := time.Now()
	done := w.open()
	if !w.observe(begin, time.Since(begin)+time.Millisecond, true) {
		t.Error("a deletion was running")
	}
	done()
	if w.observe(begin.Add(-time.Hour), time.Minute, false) || w.observe(time.Now().Add(time.Second), time.Minute, false) {
		t.Error("no deletion was running")
	}
	h := w.now()
	f := h.Beside.figures()
	if f.Count != 1 || f.Slow != 1 || f.SlowPercent != 100 {
		t.Errorf("%+v", f)
	}
	if f := h.Without.figures(); f.Count != 2 || f.Slow != 0 || f.P99 != holdfast.Millis(time.Minute) {
		t.Errorf("%+v", f)
	}
	if f := (Sample{}).figures(); f != (Figures{}) {
		t.Errorf("%+v", f)
	}
}
