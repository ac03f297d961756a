package dashboard

import (
	"context"
	"sync"
	"time"
)

// reading keeps what was read a moment ago, so that all who ask at about the same
// time share it: one asks, and the others wait for the answer. An error is kept
// as long.
type reading[T any] struct {
	read  func(ctx context.Context) (T, error)
	fresh time.Duration // how old an answer may be

	mu  sync.Mutex
	at  time.Time // of the answer
	got T
	err error
}

func newReading[T any](fresh time.Duration, read func(ctx context.Context) (T, error)) *reading[T] {
	return &reading[T]{read: read, fresh: fresh}
}

// get returns an answer that is fresh.
func (r *reading[T]) get(ctx context.Context) (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < r.fresh {
		return r.got, r.err
	}
	// The answer is for the others, too, who may not be leaving.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadLimit)
	defer cancel()
	r.got, r.err = r.read(ctx)
	r.at = time.Now()
	return r.got, r.err
}
