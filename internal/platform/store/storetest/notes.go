package storetest

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/platform/store"
)

func noteNames(t *testing.T, s store.Store, prefix string) string {
	t.Helper()
	list, err := s.ListNotes(t.Context(), prefix)
	must(t, err)
	var names []string
	for _, n := range list {
		names = append(names, n.Name+"="+string(n.Value))
	}
	return strings.Join(names, " ")
}

func testNotes(t *testing.T, s store.Store) {
	id := longLease(t, s)
	must(t, s.PutNote(t.Context(), "doctor/nodes/b", []byte("1"), id))
	must(t, s.PutNote(t.Context(), "doctor/nodes/a", []byte("2"), id))
	must(t, s.PutNote(t.Context(), "doctor/baselines/x", []byte("3"), 0))
	must(t, s.PutNote(t.Context(), "doctor/nodes/b", []byte("4"), id))
	if got := noteNames(t, s, "doctor/nodes/"); got != "doctor/nodes/a=2 doctor/nodes/b=4" {
		t.Errorf("notes %q", got)
	}
	if got := noteNames(t, s, ""); !strings.HasPrefix(got, "doctor/baselines/x=3 ") {
		t.Errorf("all notes: %q", got)
	}
	// Notes are neither sessions nor nodes.
	if owners, _ := list(t, s); len(owners) > 0 {
		t.Errorf("notes are listed as sessions: %v", owners)
	}
	if nodes, err := s.Nodes(t.Context()); err != nil || len(nodes) > 0 {
		t.Errorf("notes are listed as nodes: %v, %v", nodes, err)
	}
	must(t, s.DropNote(t.Context(), store.Note{Name: "doctor/nodes/a"}))
	must(t, s.DropNote(t.Context(), store.Note{Name: "doctor/nodes/a"}))
	must(t, s.Revoke(t.Context(), id))
	if got := noteNames(t, s, "doctor/"); got != "doctor/baselines/x=3" {
		t.Errorf("after the lease: %q", got)
	}
	if err := s.PutNote(t.Context(), "doctor/nodes/c", nil, id); !errors.Is(err, store.ErrLeaseGone) {
		t.Errorf("under a lease that is gone: %v", err)
	}
	for name, value := range map[string][]byte{"": nil, "/a": nil, "a//b": nil, "a b": nil, "a/": nil, strings.Repeat("a", 256): nil, "big": bytes.Repeat([]byte("x"), store.MaxNoteValue+1)} {
		if err := s.PutNote(t.Context(), name, value, 0); err == nil {
			t.Errorf("%q with %d bytes was taken", name, len(value))
		}
	}
}

// Of many concurrent TakeNote calls one succeeds. A late DropNote of an old revision
// does not drop the new holder's note.
func testNoteTaken(t *testing.T, s store.Store) {
	id := longLease(t, s)
	var mu sync.Mutex
	var won []store.Note
	var racing sync.WaitGroup
	for range 8 {
		racing.Go(func() {
			n, err := s.TakeNote(t.Context(), "turn", []byte("me"), id)
			switch {
			case err == nil:
				mu.Lock()
				won = append(won, n)
				mu.Unlock()
			case !errors.Is(err, store.ErrTaken) || string(n.Value) != "me":
				t.Errorf("%+v, %v", n, err)
			}
		})
	}
	racing.Wait()
	if len(won) != 1 {
		t.Fatalf("%d have it", len(won))
	}
	must(t, s.DropNote(t.Context(), won[0]))
	_, err := s.TakeNote(t.Context(), "turn", []byte("other"), id)
	must(t, err)
	must(t, s.DropNote(t.Context(), won[0])) // late
	if got := noteNames(t, s, "turn"); got != "turn=other" {
		t.Errorf("notes %q", got)
	}
}

// Of many concurrent SwapNote calls with one revision one succeeds. A note that is gone is
// not written again.
func testNoteSwapped(t *testing.T, s store.Store) {
	first, err := s.TakeNote(t.Context(), "groups/db", []byte("0"), 0)
	must(t, err)
	var mu sync.Mutex
	var won []store.Note
	var racing sync.WaitGroup
	for i := range 8 {
		racing.Go(func() {
			n, err := s.SwapNote(t.Context(), first, []byte{byte('a' + i)})
			switch {
			case err == nil:
				mu.Lock()
				won = append(won, n)
				mu.Unlock()
			case !errors.Is(err, store.ErrStale):
				t.Error(err)
			}
		})
	}
	racing.Wait()
	if len(won) != 1 || won[0].Revision <= first.Revision {
		t.Fatalf("%+v won", won)
	}
	if got, want := noteNames(t, s, "groups/"), "groups/db="+string(won[0].Value); got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
	next, err := s.SwapNote(t.Context(), won[0], []byte("next"))
	must(t, err)
	must(t, s.DropNote(t.Context(), next))
	if _, err := s.SwapNote(t.Context(), next, []byte("late")); !errors.Is(err, store.ErrStale) {
		t.Errorf("a note that is gone: %v", err)
	}
}

// A note disappears when the lease of its holder expires.
func testNoteExpires(t *testing.T, s store.Store) {
	short := grant(t, s, ttl)
	_, err := s.TakeNote(t.Context(), "turn", []byte("gone"), short)
	must(t, err)
	id := longLease(t, s)
	for end := time.Now().Add(patience); ; time.Sleep(tick) {
		_, err := s.TakeNote(t.Context(), "turn", []byte("next"), id)
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrTaken) || time.Now().After(end) {
			t.Fatalf("take a note after its holder's lease has expired: %v", err)
		}
	}
}
