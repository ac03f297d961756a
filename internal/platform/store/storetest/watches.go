package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/internal/platform/store"
)

func testWatchOrder(t *testing.T, s store.Store) {
	id := longLease(t, s)
	_, at := list(t, s)
	events := watch(t, s, at)
	a := claim(t, s, "a", id)
	b := claim(t, s, "b", id)
	must(t, s.PutNode(t.Context(), holdfast.Node{ID: "n1"}, id)) // a node's record is not a session's
	a2 := advance(t, s, a, holdfast.Ready)
	release(t, s, b)
	want := []store.Event{
		{Key: "a", Owner: a, Revision: a.Revision},
		{Key: "b", Owner: b, Revision: b.Revision},
		{Key: "a", Owner: a2, Revision: a2.Revision},
		{Key: "b", Deleted: true},
	}
	for i, w := range want {
		e := next(t, events)
		if w.Deleted && e.Revision > a2.Revision {
			w.Revision = e.Revision
		}
		if d := cmp.Diff(w, e); d != "" {
			t.Fatalf("event %d (-want +got):\n%s", i, d)
		}
	}
}

// testWatchFromMiddle watches from a past revision that no List has returned.
func testWatchFromMiddle(t *testing.T, s store.Store) {
	id := longLease(t, s)
	a := claim(t, s, "a", id)
	b := claim(t, s, "b", id)
	c := claim(t, s, "c", id)
	release(t, s, a)
	events := watch(t, s, b.Revision)
	if e := next(t, events); e.Owner != c {
		t.Errorf("first event %+v; want %v", e, c)
	}
	if e := next(t, events); e.Key != "a" || !e.Deleted {
		t.Errorf("second event %+v; want a deleted", e)
	}
}

// replica is a reader of List and Watch.
type replica struct {
	at      holdfast.Revision
	records map[holdfast.SessionKey]holdfast.Owner
}

func newReplica(owners []holdfast.Owner, at holdfast.Revision) *replica {
	r := &replica{at: at, records: map[holdfast.SessionKey]holdfast.Owner{}}
	for _, o := range owners {
		r.records[o.Key] = o
	}
	return r
}

func (r *replica) apply(t *testing.T, e store.Event) {
	t.Helper()
	if e.Revision < r.at {
		t.Errorf("event %+v after revision %d", e, r.at)
	}
	r.at = e.Revision
	if e.Deleted {
		delete(r.records, e.Key)
	} else {
		r.records[e.Key] = e.Owner
	}
}

// follow applies events up to the record of the key last, and compares the result
// with the store's list.
func (r *replica) follow(t *testing.T, s store.Store, events <-chan store.Event, last holdfast.SessionKey) {
	t.Helper()
	for r.records[last].Key == "" {
		r.apply(t, next(t, events))
	}
	// Deletes of a difference come after its puts.
	want, _ := list(t, s)
	for end := time.After(patience); ; {
		if d := cmp.Diff(newReplica(want, 0).records, r.records); d == "" {
			return
		}
		select {
		case e := <-events:
			r.apply(t, e)
		case <-end:
			t.Fatalf("the reader and the store differ (-store +reader):\n%s", cmp.Diff(newReplica(want, 0).records, r.records))
		}
	}
}

// churn writes at random to its own keys.
func churn(ctx context.Context, s store.Store, id store.LeaseID, writer, steps int) error {
	rnd := rand.New(rand.NewPCG(1, uint64(writer)))
	mine := map[holdfast.SessionKey]holdfast.Owner{}
	for range steps {
		key := keyOf(writer*100 + rnd.IntN(5))
		o, owned := mine[key]
		var err error
		switch {
		case !owned:
			mine[key], err = s.Claim(ctx, owner(key), id)
		case rnd.IntN(2) == 0:
			o.State = holdfast.Ready
			mine[key], err = s.Advance(ctx, o)
		default:
			delete(mine, key)
			_, err = s.Release(ctx, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// churnAll is churn by four writers at once.
func churnAll(t *testing.T, s store.Store, id store.LeaseID) (wait func()) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = churn(t.Context(), s, id, i, 100) })
	}
	return func() {
		t.Helper()
		wg.Wait()
		must(t, errors.Join(errs...))
	}
}

func testWatchMissesNothing(t *testing.T, s store.Store) {
	id := longLease(t, s)
	wait := churnAll(t, s, id)
	type reader struct {
		*replica
		events <-chan store.Event
	}
	var readers []reader
	for range 3 { // beside the writers
		owners, at := list(t, s)
		readers = append(readers, reader{newReplica(owners, at), watch(t, s, at)})
		time.Sleep(time.Millisecond)
	}
	wait()
	claim(t, s, "last", id)
	for _, r := range readers {
		r.follow(t, s, r.events, "last")
	}
}

func testGoneBeforeWatch(t *testing.T, s store.Store, forget func()) {
	id := longLease(t, s)
	gone := claim(t, s, "gone", id)
	claim(t, s, "same", id)
	changed := claim(t, s, "changed", id)
	reborn := claim(t, s, "reborn", id)
	owners, at := list(t, s)
	r := newReplica(owners, at)
	release(t, s, gone, reborn)
	advance(t, s, changed, holdfast.Ready)
	claim(t, s, "reborn", id)
	claim(t, s, "new", id)
	forget()
	events := watch(t, s, at)
	r.follow(t, s, events, "new")
	claim(t, s, "after", id) // a change after the gap
	r.follow(t, s, events, "after")
}

func testGoneUnderWatch(t *testing.T, s store.Store, forget func()) {
	id := longLease(t, s)
	owners, at := list(t, s)
	r := newReplica(owners, at)
	events := watch(t, s, at)
	for round := range 5 {
		churnAll(t, s, id)() // without the reader reading
		forget()
		last := keyOf(5000 + round)
		claim(t, s, last, id)
		r.follow(t, s, events, last)
		now, _ := list(t, s)
		release(t, s, now...)
	}
}

func testWatchEnds(t *testing.T, s store.Store) {
	id := longLease(t, s)
	claim(t, s, "a", id)
	claim(t, s, "b", id)
	_, at := list(t, s)
	for name, after := range map[string]holdfast.Revision{"idle": at, "full": 0} {
		ctx, cancel := context.WithCancel(t.Context())
		events := s.Watch(ctx, after)
		time.Sleep(tick) // until the watch has begun
		cancel()
		for end := time.After(patience); events != nil; {
			select {
			case _, ok := <-events:
				if !ok {
					events = nil
				}
			case <-end:
				t.Fatalf("the %s watch did not end", name)
			}
		}
	}
}

func testCallEnds(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("List = %v; want context.Canceled", err)
	}
	if _, err := s.Claim(ctx, owner("a"), longLease(t, s)); !errors.Is(err, context.Canceled) {
		t.Errorf("Claim = %v; want context.Canceled", err)
	}
	if owners, _ := list(t, s); len(owners) != 0 {
		t.Errorf("a cancelled Claim left %v", owners)
	}
}
