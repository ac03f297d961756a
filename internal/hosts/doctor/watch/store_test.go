package watch

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"holdfast/internal/hosts/doctor/rule"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// History survives a restart, the newest first.
func TestHistorySurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	now := time.Now().UTC().Truncate(time.Second)
	s := NewStore(dir, time.Hour, quiet())
	if h, err := s.History(time.Time{}, 0); err != nil || len(h.Events)+len(h.Samples) != 0 {
		t.Errorf("empty store: %+v, %v", h, err)
	}
	var want []Event
	for i := range 3 {
		e := Event{At: now.Add(time.Duration(i-3) * time.Minute), Kind: Began, Since: now.Add(-time.Hour), Finding: finding("a", rule.Warning, fmt.Sprint("/g", i))}
		want = append([]Event{e}, want...)
		if err := s.AddEvents([]Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	// Two events at the same time are kept separately.
	if err := s.AddEvents([]Event{want[0], want[0]}); err != nil {
		t.Fatal(err)
	}
	h, err := NewStore(dir, time.Hour, quiet()).History(now.Add(-150*time.Second), 0)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Event{want[0], want[0], want[0], want[1]}, h.Events); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if h, err = s.History(time.Time{}, 1); err != nil || len(h.Events) != 1 {
		t.Errorf("%d events, %v; want one", len(h.Events), err)
	}
}

// Values older than the configured period are removed.
func TestOldValuesAreRemoved(t *testing.T) {
	s := NewStore(t.TempDir(), time.Hour, quiet())
	now := time.Now()
	for _, age := range []time.Duration{3 * time.Hour, 90 * time.Minute, 30 * time.Minute, 0} {
		if err := s.AddSample(Sample{At: now.Add(-age), Seconds: 60, Facts: map[string]Figure{"x": {Mean: 1, Max: 1, N: 1}}}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddEvents([]Event{{At: now.Add(-age), Kind: Began}}); err != nil {
			t.Fatal(err)
		}
	}
	h, err := s.History(time.Time{}, 0)
	if err != nil || len(h.Samples) != 2 || len(h.Events) != 2 {
		t.Errorf("%d samples and %d events for one hour, %v; want 2 of each", len(h.Samples), len(h.Events), err)
	}
}

// One-minute samples older than a day are merged into ten-minute samples with the same
// means.
func TestCompact(t *testing.T) {
	s := NewStore(t.TempDir(), 30*24*time.Hour, quiet())
	now := time.Now().UTC().Truncate(coarse)
	sum, n, most := 0.0, 0, 0.0
	const minutes = 60
	for i := range minutes {
		f := Figure{Mean: float64(i), Max: float64(2 * i), N: 6}
		sum, n, most = sum+f.Mean*6, n+6, max(most, f.Max)
		if err := s.AddSample(Sample{At: now.Add(-25*time.Hour + time.Duration(i)*time.Minute), Seconds: 60, Facts: map[string]Figure{"x": f}}); err != nil {
			t.Fatal(err)
		}
	}
	recent := Sample{At: now.Add(-time.Minute), Seconds: 60, Facts: map[string]Figure{"x": {Mean: 7, Max: 7, N: 1}}}
	if err := s.AddSample(recent); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call changes nothing
		if err := s.Compact(now); err != nil {
			t.Fatal(err)
		}
	}
	h, err := s.History(time.Time{}, 0)
	if err != nil || len(h.Samples) != 7 {
		t.Fatalf("%d samples, %v; want 1 and 6", len(h.Samples), err)
	}
	if d := cmp.Diff(recent, h.Samples[0]); d != "" {
		t.Errorf("the recent sample (-want +got):\n%s", d)
	}
	var all Figure
	for _, one := range h.Samples[1:] {
		if one.Seconds != 600 {
			t.Errorf("%v s, want 600", one.Seconds)
		}
		all = all.merge(one.Facts["x"])
	}
	if all.N != n || all.Max != most || all.Mean < sum/float64(n)-1e-9 || all.Mean > sum/float64(n)+1e-9 {
		t.Errorf("%+v, want the mean %v of %d, %v at most", all, sum/float64(n), n, most)
	}
}

// Merging figures gives the same result as counting them together.
func TestMergeFigures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vs := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 30).Draw(t, "values")
		cut := rapid.IntRange(0, len(vs)).Draw(t, "cut")
		var a, b, all Figure
		for i, v := range vs {
			one := Figure{Mean: v, Max: v, N: 1}
			all = all.merge(one)
			if i < cut {
				a = a.merge(one)
			} else {
				b = b.merge(one)
			}
		}
		got := a.merge(b)
		if d := got.Mean - all.Mean; got.N != all.N || got.Max != all.Max || d > 1e-6 || d < -1e-6 {
			t.Fatalf("%+v and %+v are %+v, want %+v", a, b, got, all)
		}
	})
}

// A damaged file is renamed, and new values are stored.
func TestDamagedHistory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, FileName)
	if err := os.WriteFile(file, []byte("this is no database, whatever it was before, and it is long enough"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewStore(dir, time.Hour, quiet())
	if err := s.AddEvents([]Event{{At: time.Now(), Kind: Began}}); err != nil {
		t.Fatal(err)
	}
	h, err := s.History(time.Time{}, 0)
	if err != nil || len(h.Events) != 1 {
		t.Errorf("%d events, %v", len(h.Events), err)
	}
	if aside, err := filepath.Glob(file + ".damaged-*"); err != nil || len(aside) != 1 {
		t.Errorf("damaged files: %v, %v", aside, err)
	}
}
