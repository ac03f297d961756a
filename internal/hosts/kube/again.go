package kube

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pauses between tries: the first doubles up to the last. Each is drawn at random
// between half of it and all of it, so that clients that lost the same server do
// not reconnect at the same time.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// Pause returns the backoff before the nth retry (from 1): up to 30 s, and at
// least what err asks for.
func Pause(n int, err error) time.Duration { return PauseUpTo(lastPause, n, err) }

// PauseUpTo is Pause with a different upper limit of a second or more. A longer
// Retry-After in err is respected, plus up to an eighth, because other clients
// were told the same.
func PauseUpTo(longest time.Duration, n int, err error) time.Duration {
	d := min(firstPause<<min(max(n-1, 0), maxDoublings), longest)
	pause := d/2 + rand.N(d/2)
	if asked := RetryAfter(err); asked > pause {
		return asked + rand.N(asked/8)
	}
	return pause
}

// maxDoublings keeps pauses from overflowing.
const maxDoublings = 20

// Patiently calls do until it succeeds, fails with a permanent error, or has
// failed with transient errors (Transient) for limit. said receives each
// transient error and the pause after it; it may be nil.
func Patiently(ctx context.Context, limit time.Duration, do func() error, said func(error, time.Duration)) error {
	begin := time.Now()
	for n := 1; ; n++ {
		err := do()
		if err == nil || !Transient(err) || ctx.Err() != nil {
			return err
		}
		pause := Pause(n, err)
		if time.Since(begin)+pause > limit {
			return err
		}
		if said != nil {
			said(err, pause)
		}
		if Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// Sleep waits, or returns ctx's error when that is done.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
