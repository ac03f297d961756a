package memstore

import (
	"context"
	"fmt"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Follows reads the key's history between both claims.
func (s *Store) Follows(ctx context.Context, key holdfast.SessionKey, before, next holdfast.Epoch) (bool, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return false, fmt.Errorf("read the history of %s: %w", key, err)
	}
	defer unlock()
	if before <= 0 || next <= before {
		return false, nil
	}
	if holdfast.Epoch(s.gone) >= before {
		return false, fmt.Errorf("read the history of %s: %w", key, store.ErrForgotten)
	}
	seen := false
	for _, e := range s.events {
		switch {
		case e.Key != key || e.Deleted || e.Owner.Epoch < before:
		case e.Owner.Epoch == before:
			seen = true
		default:
			return seen && e.Owner.Epoch == next, nil
		}
	}
	return false, nil
}
