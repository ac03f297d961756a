package storetest

import (
	"testing"

	"holdfast"
	"holdfast/internal/store"
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
	one, two := life("a"), life("a")
	other := life("b")
	three := claim(t, s, "a", id)
	for _, c := range []struct {
		before, next holdfast.Epoch
		want         bool
	}{
		{one.Epoch, two.Epoch, true},
		{two.Epoch, three.Epoch, true},
		{one.Epoch, three.Epoch, false},
		{two.Epoch, one.Epoch, false},
		{two.Epoch, two.Epoch, false},
		{other.Epoch, three.Epoch, false},
		{0, one.Epoch, false},
	} {
		got, err := s.Follows(t.Context(), "a", c.before, c.next)
		if err != nil || got != c.want {
			t.Errorf("%d follows %d: %v, %v, want %v", c.next, c.before, got, err, c.want)
		}
	}
}
