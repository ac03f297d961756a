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

func (s *Store) set(f fault, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		close(s.over)
	}
	s.fault, s.over = none, nil
	if on {
		s.fault, s.over = f, make(chan struct{})
	}
}

// before delays or refuses a call. A watch waits until the fault is over.
func (s *Store) before(ctx context.Context, watch bool) error {
	for {
		s.mu.Lock()
		now, over := s.fault, s.over
		s.mu.Unlock()
		switch {
		case now == none:
			return nil
		case now == down && !watch:
			return fmt.Errorf("%w: it is set down", holdfast.ErrStore)
		}
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
