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

// Pause is how long to wait for the nth try after the first (from 1), at least what err
// asks for.
func Pause(n int, err error) time.Duration {
	d := lastPause
	if n < 6 {
		d = min(firstPause<<max(n-1, 0), lastPause)
	}
	return max(d/2+rand.N(d/2), RetryAfter(err))
}

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
