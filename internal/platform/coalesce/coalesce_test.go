package coalesce

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Concurrent calls cost two reads: the running one, which began before them, and the
// next.
func TestSharedReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var readings, value atomic.Int64
		s := New(func(ctx context.Context) (int64, error) {
			readings.Add(1)
			v := value.Load()
			time.Sleep(time.Second)
			return v, ctx.Err()
		})
		var all sync.WaitGroup
		first, leave := context.WithCancel(t.Context())
		all.Go(func() {
			if v, err := s.Get(first); v != 0 || err != nil {
				t.Errorf("the first got %d, %v", v, err)
			}
		})
		synctest.Wait()
		value.Store(7) // the one under way does not see it
		for range 1000 {
			all.Go(func() {
				if v, err := s.Get(t.Context()); v != 7 || err != nil {
					t.Errorf("the later caller got %d, %v", v, err)
				}
			})
		}
		gone, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			if _, err := s.Get(gone); !errors.Is(err, context.Canceled) {
				t.Errorf("the caller that left got %v", err)
			}
		})
		synctest.Wait()
		leave() // the reading is for others, too
		cancel()
		all.Wait()
		if n := readings.Load(); n != 2 {
			t.Errorf("%d readings were made, 2 are enough", n)
		}
		value.Store(8)
		if v, err := s.Get(t.Context()); v != 8 || err != nil {
			t.Errorf("an answer was kept: %d, %v", v, err)
		}
	})
}

func TestSharedErrors(t *testing.T) {
	fails := errors.New("no")
	s := New(func(context.Context) (int, error) { return 0, fails })
	if _, err := s.Get(t.Context()); !errors.Is(err, fails) {
		t.Errorf("got %v", err)
	}
}
