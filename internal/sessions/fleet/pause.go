package fleet

import (
	"context"
	"math/rand/v2"
	"time"
)

// jitter spreads a time over half of it to half as much again, so that many who
// began at once do not go on at once.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d+1)
}

// sleep reports false when ctx was done first.
func sleep(ctx context.Context, d time.Duration) bool {
	return wait(ctx, nil, d)
}

// wait returns when ch is closed or d is over, false when ctx was done first.
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
