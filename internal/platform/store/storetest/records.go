package storetest

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/internal/platform/store"
)

func testClaim(t *testing.T, s store.Store) {
	id := longLease(t, s)
	o := claim(t, s, "a", id)
	if o.Epoch <= 0 || o.Revision != holdfast.Revision(o.Epoch) {
		t.Errorf("epoch %d, revision %d; want both the revision of the claim", o.Epoch, o.Revision)
	}
	want := owner("a")
	want.Epoch, want.Revision = o.Epoch, o.Revision
	got, err := s.Get(t.Context(), "a")
	must(t, err)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Get after Claim (-want +got):\n%s", d)
	}
	other := owner("a")
	other.Node = "n2"
	present, err := s.Claim(t.Context(), other, id)
	if !errors.Is(err, store.ErrTaken) {
		t.Errorf("second Claim = %v; want ErrTaken", err)
	}
	if d := cmp.Diff(want, present); d != "" {
		t.Errorf("second Claim returns another record (-want +got):\n%s", d)
	}
}

// racers is the number of goroutines that compete for one key.
const racers = 16

// race calls f with 0…racers-1 at once and returns the errors.
func race(f func(i int) error) []error {
	var wg sync.WaitGroup
	errs := make([]error, racers)
	for i := range racers {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

func testClaimRace(t *testing.T, s store.Store) {
	id := longLease(t, s)
	for round := range 8 {
		key := keyOf(round)
		won := make([]holdfast.Owner, racers)
		errs := race(func(i int) (err error) {
			o := owner(key)
			o.Node = holdfast.NodeID(keyOf(i))
			won[i], err = s.Claim(t.Context(), o, id)
			return err
		})
		winner := oneWinner(t, errs, store.ErrTaken)
		for i, o := range won {
			if d := cmp.Diff(won[winner], o); d != "" {
				t.Errorf("racer %d got another owner than the winner (-winner +got):\n%s", i, d)
			}
		}
	}
}

// oneWinner returns the index of the one nil among errs; the others have to be
// lost.
func oneWinner(t *testing.T, errs []error, lost error) int {
	t.Helper()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			t.Fatalf("both %d and %d won", winner, i)
		case err == nil:
			winner = i
		case !errors.Is(err, lost):
			t.Fatalf("racer %d: %v; want %v", i, err, lost)
		}
	}
	if winner < 0 {
		t.Fatal("no call won")
	}
	return winner
}

func testEpochsGrow(t *testing.T, s store.Store) {
	id := longLease(t, s)
	var last holdfast.Epoch
	for i := range 20 {
		o := claim(t, s, keyOf(i%3), id)
		if o.Epoch <= last {
			t.Fatalf("claim %d of %s has epoch %d, the one before had %d", i, o.Key, o.Epoch, last)
		}
		last = o.Epoch
		if i%2 == 0 {
			o = advance(t, s, o, holdfast.Ready)
		}
		release(t, s, o)
	}
}

func testClaimWithoutLease(t *testing.T, s store.Store) {
	id := longLease(t, s)
	must(t, s.Revoke(t.Context(), id))
	if o, err := s.Claim(t.Context(), owner("a"), id); !errors.Is(err, store.ErrLeaseGone) {
		t.Errorf("Claim = %v, %v; want ErrLeaseGone", o, err)
	}
	if o, err := s.Get(t.Context(), "a"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("Get = %v, %v; want ErrNotFound", o, err)
	}
}

func testAdvance(t *testing.T, s store.Store) {
	o := claim(t, s, "a", longLease(t, s))
	next := o
	next.State, next.ContainerID, next.Address = holdfast.Ready, "c1", "10.0.0.1:80"
	next.Node, next.Epoch = "thief", o.Epoch+100 // never change
	got, err := s.Advance(t.Context(), next)
	must(t, err)
	want := next
	want.Node, want.Epoch, want.Revision = o.Node, o.Epoch, got.Revision
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Advance returns (-want +got):\n%s", d)
	}
	if got.Revision <= o.Revision {
		t.Errorf("revision %d after %d; want it to grow", got.Revision, o.Revision)
	}
	stored, err := s.Get(t.Context(), "a")
	must(t, err)
	if d := cmp.Diff(want, stored); d != "" {
		t.Errorf("Get after Advance (-want +got):\n%s", d)
	}
}

func testAdvanceRace(t *testing.T, s store.Store) {
	o := claim(t, s, "a", longLease(t, s))
	results := make([]holdfast.Owner, racers)
	winner := oneWinner(t, race(func(i int) (err error) {
		mine := o
		mine.State, mine.ContainerID = holdfast.Starting, string(keyOf(i))
		results[i], err = s.Advance(t.Context(), mine)
		return err
	}), store.ErrStale)
	for i, r := range results {
		if d := cmp.Diff(results[winner], r); d != "" {
			t.Errorf("racer %d got another record than the winner's (-winner +got):\n%s", i, d)
		}
	}
}

func testAdvanceOrder(t *testing.T, s store.Store) {
	states := []holdfast.State{holdfast.Claimed, holdfast.Starting, holdfast.Ready, holdfast.Leaving}
	id := longLease(t, s)
	for _, from := range states {
		for _, to := range append(states, "nonsense", "") {
			o := claim(t, s, "a", id)
			o = advance(t, s, o, from)
			want := o
			o.State = to
			got, err := s.Advance(t.Context(), o)
			switch {
			case from.CanBecome(to) && err != nil:
				t.Errorf("%s to %q: %v", from, to, err)
			case !from.CanBecome(to) && !errors.Is(err, store.ErrOrder):
				t.Errorf("%s to %q: %v; want ErrOrder", from, to, err)
			case !from.CanBecome(to) && got != want:
				t.Errorf("%s to %q returns %v; want the present record %v", from, to, got, want)
			}
			now, err := s.Get(t.Context(), "a")
			must(t, err)
			release(t, s, now)
		}
	}
}

func testAdvanceStale(t *testing.T, s store.Store) {
	id := longLease(t, s)
	old := claim(t, s, "a", id)
	present := advance(t, s, old, holdfast.Ready)
	// ErrStale comes before ErrOrder: also where the state would go backwards.
	for _, to := range []holdfast.State{holdfast.Claimed, holdfast.Leaving} {
		old.State = to
		if got, err := s.Advance(t.Context(), old); !errors.Is(err, store.ErrStale) || got != present {
			t.Errorf("Advance of an old revision = %v, %v; want %v, ErrStale", got, err, present)
		}
	}
	release(t, s, present)
	if got, err := s.Advance(t.Context(), present); !errors.Is(err, store.ErrStale) || got != (holdfast.Owner{}) {
		t.Errorf("Advance of a record that is gone = %v, %v; want none, ErrStale", got, err)
	}
	again := claim(t, s, "a", id)
	if got, err := s.Advance(t.Context(), present); !errors.Is(err, store.ErrStale) || got != again {
		t.Errorf("Advance of an owner of the past = %v, %v; want %v, ErrStale", got, err, again)
	}
}

func testRelease(t *testing.T, s store.Store) {
	id := longLease(t, s)
	old := claim(t, s, "changed", id)
	changed := advance(t, s, old, holdfast.Ready)
	same := claim(t, s, "same", id)
	gone := claim(t, s, "gone", id)
	release(t, s, gone)
	keys := release(t, s, old, same, gone, holdfast.Owner{Key: "never", Revision: same.Revision})
	if !slices.Equal(keys, []holdfast.SessionKey{"same"}) {
		t.Errorf("Release = %v; want only same", keys)
	}
	owners, _ := list(t, s)
	if d := cmp.Diff([]holdfast.Owner{changed}, owners); d != "" {
		t.Errorf("left after Release (-want +got):\n%s", d)
	}
	if keys := release(t, s); len(keys) != 0 {
		t.Errorf("Release of nothing = %v", keys)
	}
}

func testReleaseMany(t *testing.T, s store.Store) {
	id := longLease(t, s)
	var owners []holdfast.Owner
	var want []holdfast.SessionKey
	for i := range 500 {
		o := claim(t, s, keyOf(i), id)
		if i%10 == 0 {
			advance(t, s, o, holdfast.Ready) // so the release has an old revision
		} else {
			want = append(want, o.Key)
		}
		owners = append(owners, o)
	}
	keys := release(t, s, owners...)
	slices.Sort(keys)
	if d := cmp.Diff(want, keys); d != "" {
		t.Errorf("Release (-want +got):\n%s", d)
	}
	if left, _ := list(t, s); len(left) != 50 {
		t.Errorf("%d records are left, want the 50 that had changed", len(left))
	}
}

func testList(t *testing.T, s store.Store) {
	if owners, at := list(t, s); len(owners) != 0 || at <= 0 {
		t.Errorf("List of an empty store = %v at %d", owners, at)
	}
	id := longLease(t, s)
	var last holdfast.Owner
	for _, key := range []holdfast.SessionKey{"b", "a-1", "c", "a", "10", "9"} {
		last = claim(t, s, key, id)
	}
	owners, at := list(t, s)
	if at != last.Revision {
		t.Errorf("List is true at %d, the last write was at %d", at, last.Revision)
	}
	var keys []holdfast.SessionKey
	for _, o := range owners {
		keys = append(keys, o.Key)
	}
	if d := cmp.Diff([]holdfast.SessionKey{"10", "9", "a", "a-1", "b", "c"}, keys); d != "" {
		t.Errorf("keys (-want +got):\n%s", d)
	}
}

func testGet(t *testing.T, s store.Store) {
	claim(t, s, "ab", longLease(t, s))
	if o, err := s.Get(t.Context(), "a"); !errors.Is(err, holdfast.ErrNotFound) || o != (holdfast.Owner{}) {
		t.Errorf("Get of a key that is the beginning of another = %v, %v; want ErrNotFound", o, err)
	}
}

func testFind(t *testing.T, s store.Store) {
	id := longLease(t, s)
	var want []holdfast.Owner
	keys := []holdfast.SessionKey{"none"}
	for i := range 250 { // more than one batch of any store
		o := claim(t, s, keyOf(i), id)
		if i%10 == 0 {
			release(t, s, o)
		} else {
			want = append(want, o)
		}
		keys = append(keys, o.Key)
	}
	slices.Reverse(keys)
	claim(t, s, "other", id)
	got, err := s.Find(t.Context(), keys...)
	must(t, err)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Find (-want +got):\n%s", d)
	}
	if got, err := s.Find(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("Find of no key = %v, %v", got, err)
	}
}
