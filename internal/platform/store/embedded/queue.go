package embedded

import (
	"context"
	"errors"
	"fmt"

	"holdfast"
)

// call is one call in the queue.
type call struct {
	run     func(*state) error // it may run a second time
	changed bool
	err     error
	done    chan struct{}
}

// do carries out f after all earlier calls, and returns its result when its changes are on
// disk. f runs on the queue's goroutine. It runs again if a commit failed that it was not a
// part of. If ctx ends first, do does not wait, and the changes may still be made.
func do[T any](ctx context.Context, s *Store, doing string, f func(*state) (T, error)) (T, error) {
	limited, cancel := ctx, context.CancelFunc(func() {})
	if s.cfg.Timeout > 0 {
		limited, cancel = context.WithTimeout(ctx, s.cfg.Timeout)
	}
	defer cancel()
	err := limited.Err()
	if err == nil && s.cfg.Before != nil {
		err = s.cfg.Before(limited, false)
	}
	var value T
	if err == nil {
		value, err = await(limited, s, f)
	}
	switch {
	case err == nil:
		return value, nil
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		err = holdfast.WithHint(fmt.Errorf("%w: no answer within %v", holdfast.ErrStore, s.cfg.Timeout),
			"see whether the disk of the agent's data directory is slow or broken")
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %w", holdfast.ErrStore, err)
	}
	return value, fmt.Errorf("%s: %w", doing, err)
}

// await is do without limits of its own.
func await[T any](ctx context.Context, s *Store, f func(*state) (T, error)) (value T, err error) {
	// The result has a variable of its own, because the call may go on after await.
	var result T
	c := &call{done: make(chan struct{})}
	c.run = func(st *state) (err error) { result, err = f(st); return err }
	if err := s.enter(c); err != nil {
		return value, err
	}
	select {
	case <-c.done:
		return result, c.err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// enter adds a call to the queue, and starts the queue's goroutine if there is none.
func (s *Store) enter(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.queue = append(s.queue, c)
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.carryOut()
	}
	return nil
}

// carryOut carries out the queue until it is empty.
func (s *Store) carryOut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		calls := s.queue
		s.queue = nil
		s.mu.Unlock()
		s.runAll(calls)
		s.mu.Lock()
	}
	close(s.idle)
	s.idle = nil
}

// runAll carries out the calls, and commits their changes in one transaction. If that
// fails, the calls without changes run again: they may have seen the changes of others.
func (s *Store) runAll(calls []*call) {
	for _, c := range calls {
		s.run(c)
	}
	if err := s.commit(); err != nil {
		for _, c := range calls {
			if c.changed {
				c.err = err
			} else {
				s.run(c)
			}
		}
	}
	for _, c := range calls {
		close(c.done)
	}
}

func (s *Store) run(c *call) {
	if err := s.Err(); err != nil { // the disk has failed
		c.err = fmt.Errorf("%w: %w", holdfast.ErrStore, err)
		return
	}
	before := len(s.state.changes)
	c.err = c.run(s.state)
	c.changed = len(s.state.changes) > before
}

// commit writes the changes to the disk, and tells the watches. After a disk that is full,
// the state is that of the disk again. Any other error ends the store.
func (s *Store) commit() error {
	if len(s.state.changes) == 0 {
		s.seen()
		return nil
	}
	s.state.trim(s.cfg.History)
	s.state.changes = append(s.state.changes, s.state.meta.change())
	err := s.disk.Commit(s.state.changes)
	if err == nil {
		s.state.changes = nil
		s.seen()
		s.state.wake()
		return nil
	}
	if !errors.Is(err, ErrNoSpace) {
		s.fail(err)
		return fmt.Errorf("%w: %w", holdfast.ErrStore, err)
	}
	if failed := s.load(); failed != nil {
		s.fail(failed)
	}
	return err
}

// seen records what is on disk. A revision that goes back is a restore.
func (s *Store) seen() { s.past.Answered(s.past.Mark(), s.state.Cluster, s.state.Revision, 0) }
