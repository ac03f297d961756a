// Package coalesce shares one costly read among concurrent callers.
package coalesce

import (
	"context"
	"sync/atomic"
	"time"
)

// limit is the time limit of one read. A read serves all callers that wait, so it does
// not end with the context of the caller that started it.
const limit = 10 * time.Second

// Reader shares reads: one runs at a time, and all callers that arrive meanwhile share
// the next one. Unlike with golang.org/x/sync/singleflight, no caller gets a result
// that is older than its call. Any goroutine may call Get.
type Reader[T any] struct {
	read  func(ctx context.Context) (T, error)
	turn  chan struct{} // holds a token while a read runs
	began atomic.Int64  // the number of reads that have begun

	// The result of the last read; guarded by turn.
	last   int64
	result T
	err    error
}

// New returns a Reader that calls read.
func New[T any](read func(ctx context.Context) (T, error)) *Reader[T] {
	return &Reader[T]{read: read, turn: make(chan struct{}, 1)}
}

// Get returns a result, which is shared and must not be modified. The error is that of
// the read or of ctx.
func (r *Reader[T]) Get(ctx context.Context) (T, error) {
	before := r.began.Load()
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
	defer func() { <-r.turn }()
	if r.last > before { // that read began after this call
		return r.result, r.err
	}
	n := r.began.Add(1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	r.result, r.err = r.read(ctx)
	r.last = n
	return r.result, r.err
}
