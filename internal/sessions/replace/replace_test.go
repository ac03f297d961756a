package replace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeFleet moves sessions from n1 to n2, each in the time that its key contains: "a-3" is
// down for three seconds, after one second of preparation. "bad" fails, "gone" does not
// exist, "same" keeps its record, "other" starts from another template, and "hang" ends
// with its context.
type fakeFleet struct {
	mu       sync.Mutex
	underWay int
	most     int
	begun    []holdfast.SessionKey
}

func (f *fakeFleet) Owner(_ context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	switch key {
	case "gone":
		return holdfast.Owner{}, fmt.Errorf("session gone: %w", holdfast.ErrNotFound)
	case "dark":
		return holdfast.Owner{}, holdfast.ErrStore
	}
	return holdfast.Owner{Key: key, Node: "n1", Epoch: 7, State: holdfast.Ready, Template: "t"}, nil
}

func (f *fakeFleet) Replace(ctx context.Context, key holdfast.SessionKey, down func()) (holdfast.Owner, error) {
	f.mu.Lock()
	f.underWay++
	f.most = max(f.most, f.underWay)
	f.begun = append(f.begun, key)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.underWay--
	}()
	o, _ := f.Owner(ctx, key)
	switch key {
	case "bad":
		time.Sleep(time.Second)
		return o, errors.New("it cannot be killed")
	case "same":
		return o, nil
	case "other":
		o.Epoch, o.Template = 8, "u"
		return o, nil
	case "hang":
		<-ctx.Done()
		return o, ctx.Err()
	case "silent":
		time.Sleep(2 * time.Second)
	default:
		var n int
		_, _ = fmt.Sscanf(string(key), "a-%d", &n)
		for _, d := range []int{1, n} {
			select {
			case <-time.After(time.Duration(d) * time.Second):
				down() // the first counts
			case <-ctx.Done():
				return o, ctx.Err()
			}
		}
	}
	o.Node, o.Epoch, o.Boot = "n2", 8, holdfast.Phases{Init: 5, Start: 6, Ready: 7}
	return o, nil
}

func keys(text string) []holdfast.SessionKey {
	var out []holdfast.SessionKey
	for w := range strings.FieldsSeq(text) {
		out = append(out, holdfast.SessionKey(w))
	}
	return out
}

const seconds = holdfast.Millis(time.Second)

func TestSessionsAreReplacedSoManyAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFleet{}
		var told []string
		r := Run(t.Context(), Options{Keys: keys("a-3 a-1 gone a-1b silent"), Parallel: 2, Timeout: time.Minute}, f,
			func(ended bool, r holdfast.Replacement) {
				told = append(told, fmt.Sprintf("%s %v %s", r.Key, ended, r.To))
			})
		if r.Failed() > 0 || len(r.Unbegun) > 0 || !slices.Equal(r.Gone, keys("gone")) || r.Took != 6*seconds {
			t.Errorf("%+v", r)
		}
		if f.most != 2 || !slices.Equal(f.begun, keys("a-3 a-1 a-1b silent")) && !slices.Equal(f.begun, keys("a-1 a-3 a-1b silent")) {
			t.Errorf("%d at a time, %v", f.most, f.begun)
		}
		want := map[holdfast.SessionKey]holdfast.Millis{"a-3": 3 * seconds, "a-1": seconds, "a-1b": seconds, "silent": 2 * seconds}
		for _, row := range r.Rows {
			if row.Total != want[row.Key] || row.From != "n1" || row.To != "n2" || row.Epoch != 8 || row.Template != "t" || row.Boot.Ready != 7 || row.Started.IsZero() {
				t.Errorf("%+v, want a gap of %v", row, want[row.Key])
			}
		}
		if len(r.Rows) != 4 || len(told) != 8 || !slices.Contains(told, "a-3 false ") || told[7] != "silent true n2" {
			t.Errorf("told %q", told)
		}
	})
}

func TestNoMoreAreBegunAfterAFailure(t *testing.T) {
	for name, c := range map[string]struct{ bad, want string }{
		"cannot be moved":  {"bad", "it cannot be killed"},
		"not a new one":    {"same", "not a new session"},
		"another template": {"other", `from template "u", and was from "t"`},
		"too long":         {"hang", "deadline exceeded"},
		"no store":         {"dark", "finding its owner: store unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeFleet{}
				r := Run(t.Context(), Options{Keys: keys("a-30 " + c.bad + " rest more"), Parallel: 2, Timeout: 40 * time.Second}, f, nil)
				i := slices.IndexFunc(r.Rows, func(r holdfast.Replacement) bool { return r.Error != "" })
				if r.Failed() != 1 || i < 0 || string(r.Rows[i].Key) != c.bad || !strings.Contains(r.Rows[i].Error, c.want) || r.Rows[i].To != "" {
					t.Fatalf("%+v", r)
				}
				// The run waited for the running replacement. The hanging one blocked
				// only its own worker.
				done := slices.ContainsFunc(r.Rows, func(r holdfast.Replacement) bool { return r.Key == "a-30" && r.Error == "" })
				if !done {
					t.Errorf("what was under way was not waited for: %+v", r)
				}
				if c.bad != "hang" && !slices.Equal(r.Unbegun, keys("rest more")) {
					t.Errorf("left: %v", r.Unbegun)
				}
			})
		})
	}
}

// When the caller's context ends, running replacements continue, and no others begin.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		f := &fakeFleet{}
		r := Run(ctx, Options{Keys: keys("a-5 a-1"), Parallel: 1, Timeout: time.Minute}, f, nil)
		if len(r.Rows) != 1 || r.Rows[0].Error != "" || r.Rows[0].Total != 5*seconds || !slices.Equal(r.Unbegun, keys("a-1")) {
			t.Errorf("%+v", r)
		}
	})
}

func TestNothingToReplace(t *testing.T) {
	r := Run(t.Context(), Options{Timeout: time.Second}, &fakeFleet{}, nil)
	if r.Rows == nil || r.Gone == nil || r.Unbegun == nil || len(r.Rows) > 0 {
		t.Errorf("%+v: lists have to be empty, not null", r)
	}
}

func TestRunKeepsItsRows(t *testing.T) {
	h := NewHistory(t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		Run(t.Context(), Options{Keys: keys("a-1 bad"), Timeout: time.Minute, History: h}, &fakeFleet{}, nil)
		rows, err := h.List(0)
		if err != nil || len(rows) != 2 || rows[0].Key != "bad" || rows[0].Error == "" || rows[1].Key != "a-1" || rows[1].Total != seconds {
			t.Errorf("%+v, %v", rows, err)
		}
		lost := NewHistory("/nowhere/at/all")
		r := Run(t.Context(), Options{Keys: keys("a-1"), Timeout: time.Minute, History: lost}, &fakeFleet{}, nil)
		if r.Failed() > 0 || !strings.Contains(r.Notice, "history") {
			t.Errorf("a history that cannot be written: %+v", r)
		}
	})
}
