package memstore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/storetest"
	"holdfast/test/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	for name, history := range map[string]int{"long history": 100000, "short history": 8} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Subject{
				Open:   func(*testing.T) store.Store { return memstore.New(history) },
				Forget: func(_ *testing.T, s store.Store) { s.(*memstore.Store).Forget() },
				Around: synctest.Test,
			})
		})
	}
}

func TestRestored(t *testing.T) {
	storetest.RunRestored(t, storetest.Subject{
		Open:   func(*testing.T) store.Store { return memstore.New(1000) },
		Backup: func(_ *testing.T, s store.Store) func() { return s.(*memstore.Store).Backup() },
		Around: synctest.Test,
	})
}

func TestDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(10)
		id, _, err := s.Grant(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Claim(t.Context(), holdfast.Owner{Key: "a", State: holdfast.Claimed}, id); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events := s.Watch(ctx, 0)
		if e := <-events; e.Key != "a" || e.Deleted {
			t.Fatalf("first event %+v", e)
		}
		s.SetDown(true)
		if err := s.KeepAlive(t.Context(), id); !errors.Is(err, holdfast.ErrStore) {
			t.Errorf("KeepAlive = %v; want ErrStore", err)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		select {
		case e := <-events:
			t.Errorf("a store that is down yields %+v", e)
		default:
		}
		s.SetDown(false)
		if e := <-events; e.Key != "a" || !e.Deleted {
			t.Errorf("after it came back: %+v; want a deleted, its lease expired meanwhile", e)
		}
	})
}

// Follows cannot answer for revisions that have left the history.
func TestFollowsForgets(t *testing.T) {
	s := memstore.New(1)
	id, _, err := s.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var epochs []holdfast.Epoch
	for range 2 {
		o, err := s.Claim(t.Context(), holdfast.Owner{Key: "a", Node: "n", State: holdfast.Claimed}, id)
		if err == nil {
			_, err = s.Release(t.Context(), o)
		}
		if err != nil {
			t.Fatal(err)
		}
		epochs = append(epochs, o.Epoch)
	}
	if follows, err := s.Follows(t.Context(), "a", epochs[0], epochs[1]); follows || !errors.Is(err, store.ErrForgotten) {
		t.Errorf("%v, %v", follows, err)
	}
}

func TestHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(10)
		s.SetHung(true)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		_, _, err := s.List(ctx)
		if !errors.Is(err, holdfast.ErrStore) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("List = %v; want ErrStore and DeadlineExceeded", err)
		}
		if waited := time.Since(start); waited != 3*time.Second {
			t.Errorf("List failed after %v, not when its context was done", waited)
		}
		time.AfterFunc(time.Second, func() { s.SetHung(false) })
		if _, _, err := s.List(t.Context()); err != nil {
			t.Errorf("List over a short hang: %v", err)
		}
	})
}
