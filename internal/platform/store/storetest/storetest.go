// Package storetest is the suite that every store.Store passes.
package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Subject is an implementation under test.
type Subject struct {
	// Open returns an empty store that ends with the test.
	Open func(*testing.T) store.Store
	// Forget makes a store of Open's lose its whole history so far, like a
	// compaction.
	Forget func(*testing.T, store.Store)
	// Backup returns a function that sets a store of Open's back to this moment, like a
	// restore from a backup, under the Store as it is open. nil: the restore is tested
	// elsewhere.
	Backup func(*testing.T, store.Store) (restore func())
	// Around runs a test; nil calls it. A store with fake time gets its synctest
	// bubble here: the suite lets time pass by time.Sleep.
	Around func(*testing.T, func(*testing.T))
}

// ttl is the shortest lease that every store has.
const ttl = time.Second

// tick is the time between two polls of a test.
const tick = 20 * time.Millisecond

// patience is how long a test waits for an event; it only bounds a hanging test.
const patience = 30 * time.Second

// Run runs the suite.
func Run(t *testing.T, s Subject) {
	if s.Around == nil {
		s.Around = func(t *testing.T, f func(*testing.T)) { f(t) }
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, store.Store)
	}{
		{"claim", testClaim},
		{"claim race", testClaimRace},
		{"epochs grow", testEpochsGrow},
		{"claim without lease", testClaimWithoutLease},
		{"advance", testAdvance},
		{"advance race", testAdvanceRace},
		{"advance order", testAdvanceOrder},
		{"advance stale", testAdvanceStale},
		{"release at revision", testRelease},
		{"release many", testReleaseMany},
		{"list by key", testList},
		{"get", testGet},
		{"find", testFind},
		{"follows", testFollows},
		{"suspend", testSuspend},
		{"suspend race", testSuspendRace},
		{"lease expires", testLeaseExpires},
		{"lease renewed", testLeaseRenewed},
		{"lease gone", testLeaseGone},
		{"lease revoked", testLeaseRevoked},
		{"nodes", testNodes},
		{"node moves to a new lease", testNodeMoves},
		{"nodes race for an id", testNodeRace},
		{"watch order", testWatchOrder},
		{"watch from the middle", testWatchFromMiddle},
		{"watch misses nothing", testWatchMissesNothing},
		{"watch ends with its context", testWatchEnds},
		{"call ends with its context", testCallEnds},
		{"notes", testNotes},
		{"note is taken once", testNoteTaken},
		{"note is swapped by one", testNoteSwapped},
		{"note goes with its lease", testNoteExpires},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Around(t, func(t *testing.T) { c.run(t, s.Open(t)) })
		})
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, store.Store, func())
	}{
		{"history gone before watch", testGoneBeforeWatch},
		{"history gone under watch", testGoneUnderWatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Around(t, func(t *testing.T) {
				st := s.Open(t)
				c.run(t, st, func() { s.Forget(t, st) })
			})
		})
	}
}

// RunRestored runs the tests of a store that is restored from a backup.
func RunRestored(t *testing.T, s Subject) {
	if s.Around == nil {
		s.Around = func(t *testing.T, f func(*testing.T)) { f(t) }
	}
	s.Around(t, func(t *testing.T) {
		st := s.Open(t)
		testRestored(t, st, func() func() { return s.Backup(t, st) })
	})
}

// The helpers below end the test on an unexpected error.

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func grant(t *testing.T, s store.Store, ttl time.Duration) store.LeaseID {
	t.Helper()
	id, got, err := s.Grant(t.Context(), ttl)
	must(t, err)
	if id == 0 || got < ttl {
		t.Fatalf("Grant(%v) = lease %d, %v; want a lease that lives as long", ttl, id, got)
	}
	return id
}

// longLease is a lease that outlives any test.
func longLease(t *testing.T, s store.Store) store.LeaseID { return grant(t, s, time.Hour) }

func owner(key holdfast.SessionKey) holdfast.Owner {
	return holdfast.Owner{
		Key: key, Node: "n1", State: holdfast.Claimed, Template: "shell",
		ClaimedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func claim(t *testing.T, s store.Store, key holdfast.SessionKey, id store.LeaseID) holdfast.Owner {
	t.Helper()
	o, err := s.Claim(t.Context(), owner(key), id)
	must(t, err)
	return o
}

func advance(t *testing.T, s store.Store, o holdfast.Owner, to holdfast.State) holdfast.Owner {
	t.Helper()
	o.State = to
	o, err := s.Advance(t.Context(), o)
	must(t, err)
	return o
}

func release(t *testing.T, s store.Store, owners ...holdfast.Owner) []holdfast.SessionKey {
	t.Helper()
	keys, err := s.Release(t.Context(), owners...)
	must(t, err)
	return keys
}

func list(t *testing.T, s store.Store) ([]holdfast.Owner, holdfast.Revision) {
	t.Helper()
	owners, at, err := s.List(t.Context())
	must(t, err)
	return owners, at
}

func keyOf(i int) holdfast.SessionKey {
	return holdfast.SessionKey(fmt.Sprintf("s%04d", i))
}

// next returns the next event of a watch.
func next(t *testing.T, events <-chan store.Event) store.Event {
	t.Helper()
	select {
	case e, ok := <-events:
		if !ok {
			t.Fatal("the watch ended")
		}
		return e
	case <-time.After(patience):
		t.Fatal("the watch yields nothing")
	}
	panic("not reached")
}

// watch is Watch with a context that ends with the test. Its channel is then drained,
// so that no goroutine stays.
func watch(t *testing.T, s store.Store, after holdfast.Revision) <-chan store.Event {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events := s.Watch(ctx, after)
	t.Cleanup(func() {
		cancel()
		for range events {
			continue
		}
	})
	return events
}
