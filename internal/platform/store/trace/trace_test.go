package trace

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/storetest"
	"holdfast/test/memstore"
)

func open(t *testing.T, path string, s store.Store) *Store {
	t.Helper()
	traced, err := Open(path, "n1", s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := traced.Close(); err != nil {
			t.Error(err)
		}
	})
	return traced
}

// TestStaysAStore: recording does not change the store's behaviour.
func TestStaysAStore(t *testing.T) {
	storetest.Run(t, storetest.Subject{
		Open: func(t *testing.T) store.Store {
			return open(t, filepath.Join(t.TempDir(), "trace"), memstore.New(100000))
		},
		Forget: func(_ *testing.T, s store.Store) { s.(*Store).Store.(*memstore.Store).Forget() },
		Around: synctest.Test,
	})
}

func TestCallsAreReadAsTheyWere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	mem := memstore.New(100)
	s := open(t, path, mem)
	ctx := t.Context()
	id, _, err := s.Grant(ctx, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Claim(ctx, holdfast.Owner{Key: "a", Node: "n1", State: holdfast.Claimed}, id)
	if err != nil {
		t.Fatal(err)
	}
	s.Claim(ctx, holdfast.Owner{Key: "a", Node: "n1"}, id)
	o.State = holdfast.Starting
	next, err := s.Advance(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	s.Advance(ctx, o)
	s.KeepAlive(ctx, id)
	s.KeepAlive(ctx, id+1)
	mem.SetDown(true)
	s.Release(ctx, next)
	mem.SetDown(false)
	s.Release(ctx, next, o)
	s.Get(ctx, "a")
	s.Revoke(ctx, id)

	calls, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range calls {
		if c.Start <= 0 || c.End < c.Start || c.Node != "n1" {
			t.Errorf("%+v", c)
		}
		got = append(got, fmt.Sprintf("%s%t %v %s %v", c.Op, c.Lease == id, c.About, c.Result, c.Got))
	}
	e, r := o.Epoch, next.Revision
	want := []string{
		"granttrue [] ok []",
		fmt.Sprintf("claimtrue [{a 0 0}] ok [{a %d %d}]", e, e),
		fmt.Sprintf("claimtrue [{a 0 0}] taken [{a %d %d}]", e, e),
		fmt.Sprintf("advancefalse [{a %d %d}] ok [{a %d %d}]", e, e, e, r),
		fmt.Sprintf("advancefalse [{a %d %d}] stale [{a %d %d}]", e, e, e, r),
		"keepalivetrue [] ok []",
		"keepalivefalse [] lease_gone []",
		fmt.Sprintf("releasefalse [{a %d %d}] unknown []", e, r),
		fmt.Sprintf("releasefalse [{a %d %d} {a %d %d}] ok [{a 0 0}]", e, r, e, e),
		"getfalse [{a 0 0}] not_found []",
		"revoketrue [] ok []",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestCallThatItsProcessDidNotSurvive: the node's next process appends to the same
// file, and counts from the beginning.
func TestCallThatItsProcessDidNotSurvive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	mem := memstore.New(100)
	mem.SetHung(true)
	s := open(t, path, mem)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Claim(ctx, holdfast.Owner{Key: "a"}, 1)
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			break
		} else if time.Now().After(end) {
			t.Fatal("the call was not written before it was made")
		}
	}
	if err := s.Close(); err != nil { // nothing more is written, as after a kill
		t.Fatal(err)
	}
	cancel()
	<-done
	mem.SetHung(false)
	if _, _, err := open(t, path, mem).Grant(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	calls, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(calls) != 2 || calls[0].Op != Claim || calls[0].Result != Unknown || calls[0].End != 0 || calls[1].Result != OK {
		t.Errorf("%+v", calls)
	}
}

func TestFilesThatAreNoTrace(t *testing.T) {
	for _, text := range []string{"{", `{"call":1,"result":"ok"}` + "\n"} {
		path := filepath.Join(t.TempDir(), "trace")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if calls, err := Read(path); err == nil {
			t.Errorf("%q is read as %v", text, calls)
		}
	}
}
