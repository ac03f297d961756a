package pool

import (
	"context"
	"time"

	"holdfast/internal/platform/tasks"
)

const (
	// LookEvery is how often a pool checks for changes that no signal reports.
	LookEvery = 5 * time.Second
	// IdlePoll is how often a pool with pending work checks whether the node is idle.
	IdlePoll = 20 * time.Millisecond

	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
)

// Loop calls step until it reports that it did nothing, and again after each signal,
// every LookEvery, and every IdlePoll while pending reports work that waits for an idle
// node. It returns when ctx is done.
func Loop(ctx context.Context, s tasks.Signal, step func(context.Context) bool, pending func() bool) {
	for ctx.Err() == nil {
		if step(ctx) {
			continue
		}
		var again <-chan time.Time
		if pending() {
			again = time.After(IdlePoll)
		}
		select {
		case <-s:
		case <-tasks.Tick(LookEvery):
		case <-again:
		case <-ctx.Done():
		}
	}
}

// Backoff delays the next attempt after a failure: by one second, then twice as long
// after each further failure, up to five minutes. One goroutine uses it.
type Backoff struct {
	until time.Time
	pause time.Duration
}

// Waiting reports whether the next attempt has to wait.
func (b *Backoff) Waiting() bool { return time.Now().Before(b.until) }

// Failed records a failed attempt. It reports whether it is the first one since the
// last success.
func (b *Backoff) Failed() (first bool) {
	first = b.pause == 0
	b.pause = min(max(2*b.pause, minBackoff), maxBackoff)
	b.until = time.Now().Add(b.pause)
	return first
}

// Succeeded ends the backoff.
func (b *Backoff) Succeeded() { *b = Backoff{} }
