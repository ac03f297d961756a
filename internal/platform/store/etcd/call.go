package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"holdfast"
	"holdfast/internal/platform/store"
)

// ErrNoSpace means that etcd refuses writes because its disk or its quota is full. It
// comes together with holdfast.ErrStore and a hint.
var ErrNoSpace = errors.New("store is out of space")

// answer is the result of a call.
type answer[T any] struct {
	value T
	err   error
}

// call makes one call to etcd, with its own deadline (etcd's client can hang
// silently, etcd#6922) and in a goroutine of its own. Whatever the client does, call
// returns when ctx is done.
func call[T any](ctx context.Context, s *Store, doing string, f func(context.Context) (T, error)) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("%s: %w", doing, err)
	}
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan answer[T], 1)
	begun := s.calls.Go(func(context.Context) {
		var a answer[T]
		a.value, a.err = f(limited)
		done <- a
	})
	if !begun {
		return zero, fmt.Errorf("%s: %w: it is closed", doing, holdfast.ErrStore)
	}
	a := await(ctx, s, done)
	if a.err != nil {
		return zero, fmt.Errorf("%s: %w", doing, s.explain(ctx, a.err))
	}
	return a.value, nil
}

// await returns the answer of a call, or an error if ctx is done or etcd takes too long.
func await[T any](ctx context.Context, s *Store, done <-chan answer[T]) answer[T] {
	begun := time.Now()
	late := time.NewTimer(s.timeout)
	defer late.Stop()
	for {
		select {
		case a := <-done:
			if a.err == nil {
				s.patience.answered(time.Since(begun))
			}
			return a
		case <-ctx.Done():
			return answer[T]{err: ctx.Err()}
		case <-late.C:
		}
		took := time.Since(begun)
		rest := s.patience.wait(s.timeout) - took
		if rest <= 0 {
			s.patience.late(took)
			return answer[T]{err: fmt.Errorf("no answer within %v", took.Round(time.Millisecond))}
		}
		late.Reset(rest)
	}
}

// explain turns an error of the client into one that callers can decide by. ctx is
// the caller's.
func (s *Store) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == context.Canceled:
		return ctx.Err()
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return store.ErrLeaseGone
	case errors.Is(err, rpctypes.ErrNoSpace):
		return holdfast.WithHint(fmt.Errorf("%w: %w: etcd's database has reached its quota", holdfast.ErrStore, ErrNoSpace),
			"make room in etcd, then clear its alarm: etcdctl compact, etcdctl defrag, etcdctl alarm disarm")
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return holdfast.WithHint(fmt.Errorf("%w: %w", holdfast.ErrStore, err),
			"check the etcd user name and the content of the password file")
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty):
		return holdfast.WithHint(fmt.Errorf("%w: %w", holdfast.ErrStore, err),
			"the etcd user needs the permission to read and write keys under "+prefix)
	}
	return holdfast.WithHint(fmt.Errorf("%w: %w", holdfast.ErrStore, err), s.where)
}
