package tasks

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Loops that began at different times tick at the same moments.
func TestLoopsTickTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		calls, moments := 0, make(map[time.Time]bool)
		var loops sync.WaitGroup
		for _, interval := range []time.Duration{time.Second, time.Second, 5 * time.Second} {
			time.Sleep(130 * time.Millisecond)
			loops.Go(func() {
				_ = EveryTick(ctx, interval, func() { // it returns nil
					mu.Lock()
					defer mu.Unlock()
					calls++
					moments[time.Now()] = true
				})
			})
		}
		time.Sleep(10 * time.Second)
		cancel()
		loops.Wait()
		// Three first calls of their own, 10 moments of the first two loops, two of them also of the third.
		if calls != 3+2*10+2 || len(moments) != 3+10 {
			t.Errorf("%d calls at %d moments", calls, len(moments))
		}
	})
}
