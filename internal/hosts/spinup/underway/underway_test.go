package underway

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that a test moves.
type clock struct{ at atomic.Int64 }

func (c *clock) now() boottime.Instant   { return boottime.Instant(c.at.Load()) }
func (c *clock) forward(d time.Duration) { c.at.Add(int64(d)) }

func begin(t *testing.T, l *List, name string, life time.Duration) Entry {
	t.Helper()
	e, err := l.Begin(Outside, name, life)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestCountsFromBeginToEnd(t *testing.T) {
	var c clock
	l := New(c.now)
	n, quiet := l.UnderWay()
	if n != 0 || quiet.IsZero() {
		t.Fatalf("at first %d since %v", n, quiet)
	}
	a, b := begin(t, l, "a", time.Minute), begin(t, l, "b", time.Minute)
	n, busy := l.UnderWay()
	if n != 2 || busy.Before(quiet) || a.ID == b.ID {
		t.Fatalf("%d since %v, %s and %s", n, busy, a.ID, b.ID)
	}
	if err := l.End(a.ID); err != nil {
		t.Fatal(err)
	}
	if n, since := l.UnderWay(); n != 1 || since != busy {
		t.Errorf("%d since %v, it has been busy since %v", n, since, busy)
	}
	if got := l.Active(); len(got) != 1 || got[0] != b || l.Counts()[Outside] != 1 {
		t.Errorf("%+v, %v", got, l.Counts())
	}
	if err := l.End(b.ID); err != nil {
		t.Fatal(err)
	}
	if n, since := l.UnderWay(); n != 0 || since.Before(busy) {
		t.Errorf("at last %d since %v", n, since)
	}
	for _, id := range []string{a.ID, b.ID, "", "nonsense"} {
		if err := l.End(id); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("end of %q: %v", id, err)
		}
	}
}

func TestEndsByItself(t *testing.T) {
	var c clock
	l := New(c.now)
	short := begin(t, l, "crashed", time.Minute)
	long := begin(t, l, "slow", time.Hour)
	changed := l.Changed()
	c.forward(time.Minute - 1)
	if n, _ := l.UnderWay(); n != 2 {
		t.Errorf("%d before the end", n)
	}
	c.forward(1)
	if n, _ := l.UnderWay(); n != 1 {
		t.Errorf("%d after the end", n)
	}
	select {
	case <-changed:
	default:
		t.Error("the change was not signalled")
	}
	if err := l.End(short.ID); !errors.Is(err, holdfast.ErrNotFound) {
		t.Error(err)
	}
	if got := l.Active(); len(got) != 1 || got[0].ID != long.ID {
		t.Errorf("%+v", got)
	}
}

// TestWaitForQuiet waits as in the package comment. It is signalled although no method is
// called when an entry expires.
func TestWaitForQuiet(t *testing.T) {
	var c clock
	l := New(c.now)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- l.Run(ctx) }()
	begin(t, l, "crashed", time.Minute)
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		for {
			changed := l.Changed()
			if n, _ := l.UnderWay(); n == 0 {
				return
			}
			<-changed
		}
	}()
	c.forward(2 * time.Minute)
	select {
	case <-quiet:
	case <-time.After(time.Minute):
		t.Fatal("it never became quiet")
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

func TestBounds(t *testing.T) {
	var c clock
	l := New(c.now)
	for _, bad := range []struct {
		kind, name string
		life       time.Duration
	}{{Outside, "x", 0}, {Outside, "x", -1}, {Outside, "x", MaxLife + 1}, {"", "x", 1}, {Outside, strings.Repeat("x", MaxName+1), 1}} {
		if e, err := l.Begin(bad.kind, bad.name, bad.life); err == nil {
			t.Errorf("%+v was taken: %+v", bad, e)
		}
	}
	for range MaxEntries {
		begin(t, l, "x", time.Minute)
	}
	if _, err := l.Begin(Outside, "x", time.Minute); !errors.Is(err, ErrFull) || !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	c.forward(time.Minute)
	begin(t, l, "x", time.Minute) // those before are over
}

// TestAgainstModel compares a list with a map, with begins, ends and passing time.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c clock
		l, model := New(c.now), map[string]boottime.Instant{}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				life := time.Duration(rapid.IntRange(1, 100).Draw(t, "life"))
				e, err := l.Begin(Outside, "x", life)
				if err != nil {
					t.Fatal(err)
				}
				model[e.ID] = c.now().Add(life)
			},
			"end": func(t *rapid.T) {
				for id, until := range model {
					if err := l.End(id); (err == nil) != (until > c.now()) {
						t.Fatalf("end: %v, it lasts until %v, now %v", err, until, c.now())
					}
					delete(model, id)
					break
				}
			},
			"wait": func(t *rapid.T) { c.forward(time.Duration(rapid.IntRange(1, 50).Draw(t, "for"))) },
			"": func(t *rapid.T) {
				want := 0
				for _, until := range model {
					if until > c.now() {
						want++
					}
				}
				if n, _ := l.UnderWay(); n != want || len(l.Active()) != want {
					t.Fatalf("%d are under way, want %d", n, want)
				}
			},
		})
	})
}
