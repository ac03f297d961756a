package fleet

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/trace"
	"holdfast/test/check"
	"holdfast/test/memstore"
)

// watched is a store that two nodes write their calls to, and an observer's notes
// of it.
type watched struct {
	t     *testing.T
	mem   *memstore.Store
	files []string
	seen  observer
	from  holdfast.Revision
}

func (w *watched) node(id holdfast.NodeID) *trace.Store {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "trace")
	s, err := trace.Open(file, id, w.mem, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	w.files = append(w.files, file)
	return s
}

// look takes n changes down.
func (w *watched) look(n int) {
	w.t.Helper()
	for e := range w.mem.Watch(w.t.Context(), w.from) {
		w.seen.note(e)
		w.from = e.Revision
		if n--; n == 0 {
			return
		}
	}
}

func (w *watched) ops() []check.Op {
	w.t.Helper()
	var calls []trace.Call
	for _, f := range w.files {
		of, err := trace.Read(f)
		if err != nil {
			w.t.Fatal(err)
		}
		calls = append(calls, of...)
	}
	return history(calls, w.seen.changes)
}

func newWatched(t *testing.T) *watched {
	return &watched{t: t, mem: memstore.New(1000), seen: observer{present: map[holdfast.SessionKey]holdfast.Owner{}}}
}

func claim(t *testing.T, s store.Store, key holdfast.SessionKey) (holdfast.Owner, store.LeaseID) {
	t.Helper()
	id, _, err := s.Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Claim(t.Context(), holdfast.Owner{Key: key, State: holdfast.Claimed}, id)
	if err != nil {
		t.Fatal(err)
	}
	return o, id
}

// A lease that ends is what frees a key here; without the observer's note of it
// the next claim would be one too many.
func TestHistoryOfTracesAndExpiries(t *testing.T) {
	w := newWatched(t)
	a, b := w.node("a"), w.node("b")
	_, lease := claim(t, a, "k")
	b.Claim(t.Context(), holdfast.Owner{Key: "k"}, lease)
	w.look(1)
	if err := w.mem.Revoke(t.Context(), lease); err != nil { // past the traces: no node's call
		t.Fatal(err)
	}
	w.look(1)
	o, _ := claim(t, b, "k")
	o.State = holdfast.Ready
	o, err := b.Advance(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Release(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w.look(3)
	claim(t, a, "k")
	w.look(1)
	ops := w.ops()
	seen, err := check.History(ops, time.Minute)
	if err != nil || seen.Claims != 3 || seen.Unknown != 0 {
		t.Errorf("%s: %v", seen, err)
	}
	expiry := slices.IndexFunc(ops, func(o check.Op) bool { return o.Kind == check.Expire })
	if expiry < 0 || ops[expiry].Call == 0 {
		t.Fatalf("no expiry after a renewal in %v", ops)
	}
	var bad *check.HistoryError
	if _, err := check.History(slices.Delete(ops, expiry, expiry+1), time.Minute); !errors.As(err, &bad) {
		t.Errorf("without the expiry: %v", err)
	}
}

// TestReleaseWithoutAnAnswer: it may be what deleted a record, also where the node went
// on to renew its lease before the delete was seen.
func TestReleaseWithoutAnAnswer(t *testing.T) {
	record := func(epoch holdfast.Epoch) []trace.Record {
		return []trace.Record{{Key: "k", Epoch: epoch, Revision: holdfast.Revision(epoch)}}
	}
	ops := history([]trace.Call{
		{Node: "a", Op: trace.Grant, Lease: 7, Start: 1, End: 2, Result: trace.OK},
		{Node: "a", Op: trace.Claim, Lease: 7, Start: 3, End: 4, Result: trace.OK, About: record(0), Got: record(5)},
		{Node: "a", Op: trace.Release, Start: 10, End: 30, Result: trace.Unknown, About: record(5)},
		{Node: "b", Op: trace.Get, Start: 15, End: 16, Result: trace.NotFound, About: record(0)},
		{Node: "a", Op: trace.KeepAlive, Lease: 7, Start: 20, End: 21, Result: trace.OK},
	}, []change{{at: 25, key: "k", owner: holdfast.Owner{Key: "k", Epoch: 5, Revision: 5}, gone: true}})
	if _, err := check.History(ops, time.Minute); err != nil {
		t.Errorf("%v of %v", err, ops)
	}
}

func TestHandoversByTheRecords(t *testing.T) {
	ready := func(at time.Duration, key holdfast.SessionKey, epoch holdfast.Epoch) change {
		return change{at: at, key: key, owner: holdfast.Owner{Key: key, Epoch: epoch, State: holdfast.Ready}}
	}
	gone := func(at time.Duration, key holdfast.SessionKey, epoch holdfast.Epoch) change {
		c := ready(at, key, epoch)
		c.gone = true
		return c
	}
	events := []event{
		{act: Notice, begin: 10, owned: map[holdfast.SessionKey]holdfast.Epoch{"a": 1, "b": 2, "c": 3}},
		{act: Gone, begin: 100, owned: map[holdfast.SessionKey]holdfast.Epoch{"b": 2}},
		{act: CutShort, begin: 900, owned: map[holdfast.SessionKey]holdfast.Epoch{"a": 5}},
	}
	changes := []change{
		ready(1, "a", 1), ready(2, "b", 2), ready(3, "c", 3),
		gone(12, "a", 1), ready(30, "a", 5), // handed over
		gone(13, "c", 3),                        // and never came back
		gone(105, "b", 2), ready(150, "b", 200), // by the second act
		gone(1001, "a", 5), // by the end
	}
	var got []string
	for _, h := range handovers(events, changes, 1000) {
		got = append(got, string(h.act)+" "+h.took.String())
		if h.kept != (len(got) == 2 || len(got) == 5) {
			t.Errorf("%v: kept is %v", got, h.kept)
		}
	}
	if want := []string{"notice 20ns", "notice 0s", "notice 0s", "gone 50ns", "cut-short 0s"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFailuresBelongToTheLastAct(t *testing.T) {
	m := measured{
		events: []event{{act: Gone, begin: 10}, {act: Restart, begin: 20}},
		load: &load{past: []attempt{
			{begin: 1, end: 2, reason: "x"}, {begin: 9, end: 11, reason: "x"}, {begin: 11, end: 21, reason: "y"},
			{begin: 12, end: 22, reason: "y"}, {begin: 30, end: 31},
		}},
	}
	d := Details{Errors: failures(m)}
	want := []Failure{{Restart, "y", 2}, {"", "x", 1}, {Gone, "x", 1}}
	for _, f := range want {
		if !slices.Contains(d.Errors, f) {
			t.Errorf("%v is not in %v", f, d.Errors)
		}
	}
	if len(d.Errors) != len(want) || d.FailedOnNotice() != 2 {
		t.Errorf("got %v", d.Errors)
	}
}

func TestSchedules(t *testing.T) {
	random := func() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }
	draw := func(text string, n int) (out []Act) {
		s, err := newSchedule(text, true, random())
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			a, _ := s.next()
			out = append(out, a)
		}
		return out
	}
	if got := draw("gone,notice", 3); !slices.Equal(got, []Act{Gone, Notice, Gone}) {
		t.Errorf("got %v", got)
	}
	if got := draw("none", 1); got[0] != "" {
		t.Errorf("got %v", got)
	}
	two := draw(Mixed, 2*len(Acts(true)))
	if !slices.Equal(two, draw(Mixed, 2*len(Acts(true)))) {
		t.Error("the same seed gives another order")
	}
	for _, round := range [][]Act{two[:len(Acts(true))], two[len(Acts(true)):]} {
		for _, a := range Acts(true) {
			if !slices.Contains(round, a) {
				t.Errorf("%s is not in %v", a, round)
			}
		}
	}
	if _, err := newSchedule("notice,earthquake", false, random()); err == nil || !strings.Contains(holdfast.HintOf(err), "notice, restart, ") {
		t.Errorf("got %v", err)
	}
}

// TestContainerOfTwoClaimsIsFound: by what the records named, and a warm one, which
// no node created for its claim, is counted.
func TestContainerOfTwoClaimsIsFound(t *testing.T) {
	ready := func(key holdfast.SessionKey, epoch holdfast.Epoch, container string, create time.Duration) change {
		return change{key: key, owner: holdfast.Owner{
			Key: key, Epoch: epoch, State: holdfast.Ready, ContainerID: container, Boot: holdfast.Phases{Create: holdfast.Millis(create)},
		}}
	}
	changes := []change{ready("a", 5, "c1", time.Millisecond), ready("a", 5, "c1", time.Millisecond), ready("b", 6, "c2", 0), ready("b", 6, "c2", 0)}
	var good Verdict
	if err := good.handedOn(changes); err != nil || good.HandedOn != "" || good.failed() != 0 || good.Containers != 2 || good.Warm != 1 {
		t.Errorf("%+v, %v", good, err)
	}
	var bad Verdict
	if err := bad.handedOn(append(changes, ready("c", 9, "c2", 0))); err != nil || bad.failed() != 1 || !strings.Contains(bad.String(), "c epoch 9") {
		t.Errorf("%s, %v", bad, err)
	}
	var nothing Verdict
	if err := nothing.handedOn([]change{{key: "a"}}); !errors.Is(err, check.ErrNothing) {
		t.Errorf("of nothing: %v", err)
	}
}
