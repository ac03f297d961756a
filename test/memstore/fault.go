package memstore

import (
	"context"
	"fmt"

	"holdfast"
)

// fault is a failure that the store simulates.
type fault int

const (
	none fault = iota
	down       // every call fails at once
	hung       // no call returns before its context is done
)

// SetDown makes every call fail with holdfast.ErrStore, or ends that. Time goes
// on meanwhile: leases expire.
func (s *Store) SetDown(on bool) { s.set(down, on) }

// SetHung makes every call wait until its context is done, or ends that; waiting
// calls then succeed. Time goes on meanwhile: leases expire.
func (s *Store) SetHung(on bool) { s.set(hung, on) }

// Forget drops the whole history, like a compaction: watchers that have not seen all
// of it get the difference to a list.
func (s *Store) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events, s.gone = nil, s.revision
	s.wake()
}

func (s *Store) set(f fault, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !on {
		f = none
	}
	s.fault = f
	s.wake()
}

// enter locks the store for one call, unless its context is done or the store is
// down.
func (s *Store) enter(ctx context.Context) (unlock func(), err error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		switch s.fault {
		case none:
			s.notice()
			return func() { s.notice(); s.mu.Unlock() }, nil
		case down:
			s.mu.Unlock()
			return nil, fmt.Errorf("%w: it is set down", holdfast.ErrStore)
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			if ctx.Err() == context.DeadlineExceeded {
				return nil, fmt.Errorf("%w: %w", holdfast.ErrStore, ctx.Err())
			}
			return nil, ctx.Err()
		}
	}
}
