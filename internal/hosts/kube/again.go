package kube

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pauses between tries: from the first, doubling, to the last, each between half of it
// and all of it, so that many who lost the same server do not come back together.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// Pause is how long to wait for the nth try after the first (from 1): up to 30 s, and at
// least what err asks for.
func Pause(n int, err error) time.Duration { return PauseUpTo(lastPause, n, err) }

// PauseUpTo is Pause with another longest pause, of a second or more. What err asks for
// may be longer than that: it is waited for, and up to an eighth more, because others
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

// Patiently does something until it succeeds, fails for good, or has failed in ways
// that pass (Transient) for as long as limit. said hears of each such failure and how long
// the pause after it is; it may be nil.
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
