package agent

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Many who ask at once cost two readings: the one under way, which is too old for
// them, and the next.
func TestSharedReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var readings, value atomic.Int64
		s := newShared(func(ctx context.Context) (int64, error) {
			readings.Add(1)
			v := value.Load()
			time.Sleep(time.Second)
			return v, ctx.Err()
		})
		var all sync.WaitGroup
		first, leave := context.WithCancel(t.Context())
		all.Go(func() {
			if v, err := s.get(first); v != 0 || err != nil {
				t.Errorf("the first got %d, %v", v, err)
			}
		})
		synctest.Wait()
		value.Store(7) // the one under way does not see it
		for range 1000 {
			all.Go(func() {
				if v, err := s.get(t.Context()); v != 7 || err != nil {
					t.Errorf("who asked later got %d, %v", v, err)
				}
			})
		}
		gone, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			if _, err := s.get(gone); !errors.Is(err, context.Canceled) {
				t.Errorf("who left got %v", err)
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
		if v, err := s.get(t.Context()); v != 8 || err != nil {
			t.Errorf("an answer was kept: %d, %v", v, err)
		}
	})
}

func TestSharedErrors(t *testing.T) {
	fails := errors.New("no")
	s := newShared(func(context.Context) (int, error) { return 0, fails })
	if _, err := s.get(t.Context()); !errors.Is(err, fails) {
		t.Errorf("got %v", err)
	}
}
