package dashboard

import (
	"context"
	"sync"
	"time"
)

// cached caches the result of a read for a short time. One of several concurrent
// callers reads, and the others wait for its result. An error is cached, too.
type cached[T any] struct {
	read  func(ctx context.Context) (T, error)
	fresh time.Duration // maximum age of a result

	mu  sync.Mutex
	at  time.Time // of the result
	got T
	err error
}

func newCached[T any](fresh time.Duration, read func(ctx context.Context) (T, error)) *cached[T] {
	return &cached[T]{read: read, fresh: fresh}
}

// get returns a fresh result.
func (r *cached[T]) get(ctx context.Context) (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < r.fresh {
		return r.got, r.err
	}
	// The result is for all callers: the end of this request must not cancel the read.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadLimit)
	defer cancel()
	r.got, r.err = r.read(ctx)
	r.at = time.Now()
	return r.got, r.err
}

// drop makes the next get read again.
func (r *cached[T]) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = time.Time{}
}
