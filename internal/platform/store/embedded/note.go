package embedded

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"holdfast/internal/platform/store"
)

// PutNote writes a note.
func (s *Store) PutNote(ctx context.Context, name string, value []byte, id store.LeaseID) error {
	_, err := s.writeNote(ctx, fmt.Sprintf("put note %s", name), store.Note{Name: name, Value: value}, id, func(*state) error { return nil })
	return err
}

// TakeNote writes a note if there is none.
func (s *Store) TakeNote(ctx context.Context, name string, value []byte, id store.LeaseID) (store.Note, error) {
	return s.writeNote(ctx, fmt.Sprintf("take note %s", name), store.Note{Name: name, Value: value}, id, func(st *state) error {
		if _, ok := st.notes[name]; ok {
			return store.ErrTaken
		}
		return nil
	})
}

// SwapNote replaces a note that has not changed.
func (s *Store) SwapNote(ctx context.Context, n store.Note, value []byte) (store.Note, error) {
	next, err := s.writeNote(ctx, fmt.Sprintf("replace note %s", n.Name), store.Note{Name: n.Name, Value: value}, 0, func(st *state) error {
		if there, ok := st.notes[n.Name]; !ok || there.Note.Revision != n.Revision {
			return store.ErrStale
		}
		return nil
	})
	if err != nil {
		return store.Note{}, err
	}
	return next, nil
}

// writeNote writes a note if may allows it. With an error of may it returns the present
// note.
func (s *Store) writeNote(ctx context.Context, doing string, n store.Note, id store.LeaseID, may func(*state) error) (store.Note, error) {
	if err := store.CheckNote(n.Name, n.Value); err != nil {
		return store.Note{}, err
	}
	n.Value = bytes.Clone(n.Value)
	return do(ctx, s, doing, func(st *state) (store.Note, error) {
		if err := may(st); err != nil {
			return copyNote(st.notes[n.Name].Note), err
		}
		if id != 0 && st.leases[id] == nil {
			return store.Note{}, store.ErrLeaseGone
		}
		if err := s.disk.Room(); err != nil {
			return store.Note{}, err
		}
		next, err := st.putNote(n, id)
		return copyNote(next), err
	})
}

// putNote writes a note at the next revision.
func (st *state) putNote(n store.Note, id store.LeaseID) (store.Note, error) {
	n.Revision = st.Revision + 1
	r := noteRecord{n, id}
	if err := st.set(noteBucket, n.Name, r); err != nil {
		return store.Note{}, err
	}
	st.Revision++
	st.notes[n.Name] = r
	return n, nil
}

func copyNote(n store.Note) store.Note {
	n.Value = bytes.Clone(n.Value)
	return n
}

// ListNotes returns notes by name.
func (s *Store) ListNotes(ctx context.Context, prefix string) ([]store.Note, error) {
	return do(ctx, s, "list notes", func(st *state) (list []store.Note, err error) {
		for _, name := range slices.Sorted(maps.Keys(st.notes)) {
			if strings.HasPrefix(name, prefix) {
				list = append(list, copyNote(st.notes[name].Note))
			}
		}
		return list, nil
	})
}

// DropNote deletes a note.
func (s *Store) DropNote(ctx context.Context, n store.Note) error {
	_, err := do(ctx, s, fmt.Sprintf("drop note %s", n.Name), func(st *state) (struct{}, error) {
		if there, ok := st.notes[n.Name]; ok && (n.Revision == 0 || there.Note.Revision == n.Revision) {
			st.Revision++
			st.dropNote(n.Name)
		}
		return struct{}{}, nil
	})
	return err
}

func (st *state) dropNote(name string) {
	st.unset(noteBucket, name)
	delete(st.notes, name)
}
