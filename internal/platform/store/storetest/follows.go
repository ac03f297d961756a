package storetest

import (
	"errors"
	"testing"

	"holdfast"
	"holdfast/internal/platform/store"
)

func testFollows(t *testing.T, s store.Store) {
	id := longLease(t, s)
	life := func(key holdfast.SessionKey) holdfast.Owner {
		t.Helper()
		o := claim(t, s, key, id)
		o.State = holdfast.Ready
		o, err := s.Advance(t.Context(), o)
		must(t, err)
		_, err = s.Release(t.Context(), o)
		must(t, err)
		return o
	}
	check := func(before, next holdfast.Epoch, want bool) {
		t.Helper()
		got, err := s.Follows(t.Context(), "a", before, next)
		if !want && errors.Is(err, store.ErrForgotten) {
			return // the store has forgotten it
		}
		if err != nil || got != want {
			t.Errorf("%d follows %d: %v, %v, want %v", next, before, got, err, want)
		}
	}
	one, two := life("a"), life("a")
	check(one.Epoch, two.Epoch, true) // checked at once: a store may forget old history
	other := life("b")
	three := claim(t, s, "a", id)
	check(two.Epoch, three.Epoch, true)
	check(one.Epoch, three.Epoch, false)
	check(two.Epoch, one.Epoch, false)
	check(two.Epoch, two.Epoch, false)
	check(other.Epoch, three.Epoch, false)
	check(0, one.Epoch, false)

	// Any number of other writes may be between, in a life and between two, unless
	// the store has forgotten that history.
	long := func(before, next holdfast.Epoch, want bool) {
		t.Helper()
		got, err := s.Follows(t.Context(), "a", before, next)
		if !errors.Is(err, store.ErrForgotten) && (err != nil || got != want) {
			t.Errorf("%d follows %d: %v, %v, want %v", next, before, got, err, want)
		}
	}
	_, err := s.Release(t.Context(), three)
	must(t, err)
	for _, writes := range []int{1, 30, 150} {
		first := claim(t, s, "a", id)
		for range writes {
			life("c")
		}
		_, err := s.Release(t.Context(), first)
		must(t, err)
		for range writes / 2 {
			life("c")
		}
		second := claim(t, s, "a", id)
		long(first.Epoch, second.Epoch, true)
		_, err = s.Release(t.Context(), second)
		must(t, err)
		for range writes / 2 {
			life("c")
		}
		third := claim(t, s, "a", id)
		long(first.Epoch, third.Epoch, false)
		long(second.Epoch, third.Epoch, true)
		_, err = s.Release(t.Context(), third)
		must(t, err)
	}
}
