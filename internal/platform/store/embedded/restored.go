package embedded

import (
	"context"

	"holdfast/internal/platform/store"
)

// Seen returns what was seen.
func (s *Store) Seen() store.Seen { return s.past.Seen() }

// Remember adds what an earlier process has seen.
func (s *Store) Remember(seen store.Seen) { s.past.Remember(seen) }

// RaiseEpochs raises the revision, of which the epoch of each claim is made.
func (s *Store) RaiseEpochs(ctx context.Context) error {
	_, err := do(ctx, s, "raise the epochs", func(st *state) (struct{}, error) {
		if to := s.past.Seen().Base(0, st.Revision); to != 0 {
			st.Revision += to
			st.changes = append(st.changes, st.meta.change())
		}
		return struct{}{}, nil
	})
	return err
}

// Resume accepts claims again.
func (s *Store) Resume(ctx context.Context) error {
	if err := s.RaiseEpochs(ctx); err != nil {
		return err
	}
	return s.past.Resume(s.lists.Forget)
}
