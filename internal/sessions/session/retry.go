package session

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"holdfast"
)

// Back-off of retries, doubled from the first to the longest.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// retry calls f until it succeeds, fails with anything but the passing error,
// or ctx is done; then the last error counts.
func retry(ctx context.Context, passing error, f func() error) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := f()
		if err == nil || !errors.Is(err, passing) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// persist calls f until it succeeds or ctx, the Manager's life, ends; where it
// has ended, once and for a second at most. It reports whether f succeeded. What
// is left undone, the next agent finds by label and record.
func (m *Manager) persist(ctx context.Context, what string, key holdfast.SessionKey, f func(context.Context) error) bool {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
	}
	level := slog.LevelWarn
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := f(ctx)
		if err == nil {
			return true
		}
		m.log.Log(ctx, level, what+" (will be tried again)", "session", key, "err", err)
		level = slog.LevelDebug // said once
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}
