package session

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// Backoff of retries, doubled from firstPause to longestPause.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// retry calls f until it succeeds, f returns an error other than passing, or ctx is done. It
// returns the last error.
func retry(ctx context.Context, passing error, f func() error) error {
	var err error
	for range attempts(ctx) {
		if err = f(); err == nil || !errors.Is(err, passing) {
			return err
		}
	}
	return err
}

// attempts yields once, and then after each pause of the backoff until ctx is done.
func attempts(ctx context.Context) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for pause := firstPause; yield(pause) && tasks.Sleep(ctx, pause) == nil; {
			pause = min(2*pause, longestPause)
		}
	}
}

// persist calls f until it succeeds or ctx, the Manager's context, is done. If ctx is
// already done, it calls f once, for a second at most. It reports whether f succeeded.
// If f never succeeded, the next agent finds the rest of the work by its labels and records.
func (m *Manager) persist(ctx context.Context, what string, key holdfast.SessionKey, f func(context.Context) error) bool {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
	}
	level := slog.LevelWarn
	for range attempts(ctx) {
		err := f(ctx)
		if err == nil {
			return true
		}
		m.log.Log(ctx, level, what+" (will be tried again)", "session", key, "err", err)
		level = slog.LevelDebug // logged once
	}
	return false
}
