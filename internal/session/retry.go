package session

import (
	"context"
	"errors"
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

// persist calls f until it succeeds or the agent stops. What is left undone
// then, the next agent finds by label and record.
func (m *Manager) persist(what string, key holdfast.SessionKey, f func(context.Context) error) {
	m.mu.Lock()
	ctx := m.life
	m.mu.Unlock()
	if ctx == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), time.Second)
		defer cancel()
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := f(ctx)
		if err == nil {
			return
		}
		m.log.Warn(what, "session", key, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}
