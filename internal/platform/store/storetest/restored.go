package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"holdfast"
	"holdfast/internal/platform/store"
)

// testRestored restores a store twice, the second time to a moment before the first
// Resume.
func testRestored(t *testing.T, s store.Store, backup func() (restore func())) {
	id := longLease(t, s)
	a := claim(t, s, "a", id)
	restore := backup()
	highest := claim(t, s, "b", id)
	gone := claim(t, s, "gone", id)
	advance(t, s, a, holdfast.Ready)
	_, at := list(t, s)
	events := watch(t, s, at)
	for _, key := range []holdfast.SessionKey{"c", "d"} {
		restore()
		noticed(t, s)
		if o, err := s.Claim(t.Context(), owner("early"), id); !errors.Is(err, store.ErrRestored) || !errors.Is(err, holdfast.ErrStore) {
			t.Fatalf("Claim right after a restore = %v, %v; want ErrRestored", o, err)
		}
		all := restored(t, events)
		// The revision may be raised from a resumption before.
		if d := cmp.Diff([]holdfast.Owner{a}, all.Owners, cmpopts.IgnoreFields(holdfast.Owner{}, "Revision")); d != "" {
			t.Errorf("restored records (-want +got):\n%s", d)
		}
		must(t, s.RaiseEpochs(t.Context()))
		if _, err := s.Find(t.Context()); err != nil { // notices nothing new
			t.Fatal(err)
		}
		resume(t, s)
		all = restored(t, events)
		c := claim(t, s, key, id)
		if c.Epoch <= highest.Epoch || c.Epoch <= gone.Epoch || c.Revision != holdfast.Revision(c.Epoch) || c.Revision <= all.Revision {
			t.Errorf("after a restore, claim %v at revision %d; before, epochs up to %d", c, c.Revision, max(highest.Epoch, gone.Epoch))
		}
		if e := next(t, events); e.Owner != c || e.Revision != c.Revision {
			t.Errorf("event %+v; want %v", e, c)
		}
		if len(all.Owners) != 1 || all.Owners[0].Epoch != a.Epoch {
			t.Fatalf("records %v", all.Owners)
		}
		// Records of before the restore keep their epoch, and change like others.
		old := advance(t, s, all.Owners[0], holdfast.Starting)
		if e := next(t, events); e.Owner != old || old.Epoch != a.Epoch || old.Revision <= c.Revision {
			t.Errorf("event %+v; want %v", e, old)
		}
		if follows, err := s.Follows(t.Context(), "a", old.Epoch, c.Epoch); follows || err != nil && !errors.Is(err, store.ErrForgotten) {
			t.Errorf("an epoch follows one of before the restore: %v, %v", follows, err)
		}
		if keys := release(t, s, old); len(keys) != 1 {
			t.Errorf("an old record is not released")
		}
		if e := next(t, events); e.Key != "a" || !e.Deleted || e.Revision <= old.Revision {
			t.Errorf("event %+v; want a deleted", e)
		}
		highest = c
	}
}

// noticed waits until a store has noticed a restore.
func noticed(t *testing.T, s store.Store) {
	t.Helper()
	for end := time.Now().Add(patience); !s.Seen().Restored; time.Sleep(tick) {
		if _, err := s.Find(t.Context()); err != nil && !errors.Is(err, holdfast.ErrStore) || time.Now().After(end) {
			t.Fatalf("the restore is not noticed: %v", err)
		}
	}
}

// resume waits until a store accepts claims, because the watch may not have recorded
// yet that its reader has all records.
func resume(t *testing.T, s store.Store) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(tick) {
		err := s.Resume(t.Context())
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrRestored) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// restored returns the next event with all records.
func restored(t *testing.T, events <-chan store.Event) store.Event {
	t.Helper()
	for {
		if e := next(t, events); e.Restored {
			return e
		}
	}
}
