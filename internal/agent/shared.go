package agent

import (
	"context"
	"sync/atomic"
	"time"
)

// sharedLimit bounds one reading: it is for all who wait, and does not end with
// the one that began it.
const sharedLimit = 10 * time.Second

// shared has many share a costly reading: one is under way at a time, and who asks
// meanwhile gets the next one's answer, together with all others who do. So
// nobody gets an answer that is older than the question, and however many ask, the
// reading is done once at a time. Any goroutine may call get.
type shared[T any] struct {
	read  func(ctx context.Context) (T, error)
	turn  chan struct{} // holds a token while a reading is under way
	began atomic.Int64  // readings, so far

	// Of the last reading; for who has the turn.
	last int64
	got  T
	err  error
}

func newShared[T any](read func(ctx context.Context) (T, error)) *shared[T] {
	return &shared[T]{read: read, turn: make(chan struct{}, 1)}
}

// get returns an answer that nobody may change. The error is the reading's, or
// that ctx is done.
func (s *shared[T]) get(ctx context.Context) (T, error) {
	before := s.began.Load()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	if s.last > before { // it began after this call
		return s.got, s.err
	}
	n := s.began.Add(1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedLimit)
	defer cancel()
	s.got, s.err = s.read(ctx)
	s.last = n
	return s.got, s.err
}
