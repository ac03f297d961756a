package fleet

import (
	"context"
	"math/rand/v2"
	"time"
)

// jitter returns a random duration between 0.5 and 1.5 times d, so that goroutines
// that start together do not continue together.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d+1)
}

// wait returns when ch is closed or d is over. It returns false if ctx is done first.
func wait(ctx context.Context, ch <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ch:
	case <-ctx.Done():
		return false
	}
	return true
}
