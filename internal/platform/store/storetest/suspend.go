package storetest

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"holdfast"
	"holdfast/internal/platform/store"
)

func testSuspend(t *testing.T, s store.Store) {
	id := longLease(t, s)
	o := claim(t, s, "a", id)
	if o.SuspendNote != "" {
		t.Errorf("the first claim has %q", o.SuspendNote)
	}
	stale := o
	o.State = holdfast.Leaving
	o, err := s.Advance(t.Context(), o)
	must(t, err)
	if err := s.Suspend(t.Context(), stale, "stale"); !errors.Is(err, store.ErrStale) {
		t.Errorf("at an old revision: %v", err)
	}
	if got := noteNames(t, s, store.SuspendedNotes); got != "" {
		t.Errorf("it left %q", got)
	}
	must(t, s.Suspend(t.Context(), o, "image"))
	if _, err := s.Get(t.Context(), "a"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("the record: %v", err)
	}
	if got := noteNames(t, s, store.SuspendedNotes); got != "suspended/a=image" {
		t.Errorf("it left %q", got)
	}
	if err := s.Suspend(t.Context(), o, "again"); !errors.Is(err, store.ErrStale) {
		t.Errorf("twice: %v", err)
	}
	if other := claim(t, s, "b", id); other.SuspendNote != "" {
		t.Errorf("another key's claim has %q", other.SuspendNote)
	}
	next := claim(t, s, "a", id)
	if next.SuspendNote != "image" || next.Epoch <= o.Epoch {
		t.Errorf("%+v after epoch %d", next, o.Epoch)
	}
	if got, err := s.Get(t.Context(), "a"); err != nil || got.SuspendNote != "" {
		t.Errorf("the record has the text: %+v, %v", got, err)
	}
	if got := noteNames(t, s, store.SuspendedNotes); got != "" {
		t.Errorf("%q is still there", got)
	}
	_, err = s.Release(t.Context(), next)
	must(t, err)
	if again := claim(t, s, "a", id); again.SuspendNote != "" {
		t.Errorf("a later claim has %q", again.SuspendNote)
	}
	if err := s.Suspend(t.Context(), next, strings.Repeat("x", store.MaxNoteValue+1)); err == nil {
		t.Error("a text of any length was taken")
	}
}

// Of many concurrent claims one gets the text: the one that gets the session.
func testSuspendRace(t *testing.T, s store.Store) {
	id := longLease(t, s)
	o := claim(t, s, "a", id)
	must(t, s.Suspend(t.Context(), o, "image"))
	var claims, got atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			o, err := s.Claim(t.Context(), holdfast.Owner{Key: "a", Node: "n", State: holdfast.Claimed}, id)
			if err == nil {
				claims.Add(1)
			} else if !errors.Is(err, store.ErrTaken) {
				t.Error(err)
			}
			if o.SuspendNote == "image" {
				got.Add(1)
			}
		})
	}
	all.Wait()
	if claims.Load() != 1 || got.Load() != 1 {
		t.Errorf("%d calls have claimed the key, %d have got the text", claims.Load(), got.Load())
	}
}
