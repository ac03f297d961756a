package etcd

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"holdfast"
	"holdfast/internal/platform/store"
)

// ErrNoSpace means that etcd refuses writes because its disk or its quota is full. It
// comes together with holdfast.ErrStore and a hint.
var ErrNoSpace = errors.New("store is out of space")

// errEnded is the error of a call that was in progress when the server failed.
var errEnded = errors.New("the embedded etcd has failed")

// call makes one call to etcd, with its own deadline (etcd's client can hang
// silently, etcd#6922) and in a goroutine of its own. Whatever the client does, call
// returns when ctx is done or when the embedded server fails.
func call[T any](ctx context.Context, s *Store, doing string, f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("%s: %w", doing, err)
	}
	if err := context.Cause(s.dead); err != nil {
		return zero, fmt.Errorf("%s: %w: %w", doing, holdfast.ErrStore, err)
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	done := make(chan answer, 1)
	begun := s.calls.Go(func(context.Context) {
		a := answer{err: errEnded}
		defer func() { done <- a }()
		a.value, a.err = f(limited)
	})
	if !begun {
		return zero, fmt.Errorf("%s: %w: it is closed", doing, holdfast.ErrStore)
	}
	var a answer
	select {
	case a = <-done:
	case <-limited.Done():
		a.err = limited.Err()
	case <-s.dead.Done():
		a.err = context.Cause(s.dead)
	}
	if a.err != nil {
		return zero, fmt.Errorf("%s: %w", doing, s.explain(ctx, a.err))
	}
	return a.value, nil
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
		return noSpace("etcd's database has reached its quota", s.quota)
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return holdfast.WithHint(fmt.Errorf("%w: %w", holdfast.ErrStore, err),
			"check the etcd user name and the content of the password file")
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty):
		return holdfast.WithHint(fmt.Errorf("%w: %w", holdfast.ErrStore, err),
			"the etcd user needs the permission to read and write keys under "+prefix)
	case s.dead.Err() != nil:
		return fmt.Errorf("%w: %w", holdfast.ErrStore, context.Cause(s.dead))
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %v", s.timeout)
	}
	return holdfast.WithHint(fmt.Errorf("%w: %w", holdfast.ErrStore, err), s.where)
}

func noSpace(what, hint string) error {
	return holdfast.WithHint(fmt.Errorf("%w: %w: %s", holdfast.ErrStore, ErrNoSpace, what), hint)
}

// fileHint is the hint for an error of the server's files, or "".
func fileHint(dir string, err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "make room on the filesystem of " + dir + " and start again; nothing is lost"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return dir + " has to belong to the user of the agent, normally root"
	case errors.Is(err, syscall.EROFS):
		return "the filesystem of " + dir + " is mounted read-only"
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EEXIST):
		return "the embedded etcd's directory has other files in it: give it a directory of its own"
	case errors.Is(err, syscall.EIO):
		return "the disk under " + dir + " reports errors: see the kernel's log"
	}
	return ""
}

func (s *Store) checkRoom(doing string) error {
	if s.room == nil {
		return nil
	}
	if err := s.room(); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}
