package memstore

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"holdfast/internal/platform/store"
)

type noteRecord struct {
	note  store.Note
	lease store.LeaseID
}

// PutNote writes a note.
func (s *Store) PutNote(ctx context.Context, name string, value []byte, id store.LeaseID) error {
	_, err := s.writeNote(ctx, name, value, id, false)
	return err
}

// TakeNote writes a note if there is none.
func (s *Store) TakeNote(ctx context.Context, name string, value []byte, id store.LeaseID) (store.Note, error) {
	return s.writeNote(ctx, name, value, id, true)
}

func (s *Store) writeNote(ctx context.Context, name string, value []byte, id store.LeaseID, first bool) (store.Note, error) {
	if err := store.CheckNote(name, value); err != nil {
		return store.Note{}, err
	}
	unlock, err := s.enter(ctx)
	if err != nil {
		return store.Note{}, fmt.Errorf("put note %s: %w", name, err)
	}
	defer unlock()
	if there, ok := s.notes[name]; ok && first {
		return copyNote(there.note), fmt.Errorf("take note %s: %w", name, store.ErrTaken)
	}
	if id != 0 && s.leases[id] == nil {
		return store.Note{}, fmt.Errorf("put note %s: %w", name, store.ErrLeaseGone)
	}
	s.revision++
	n := store.Note{Name: name, Value: bytes.Clone(value), Revision: s.revision}
	s.notes[name] = noteRecord{n, id}
	return copyNote(n), nil
}

// SwapNote replaces a note that has not changed.
func (s *Store) SwapNote(ctx context.Context, n store.Note, value []byte) (store.Note, error) {
	if err := store.CheckNote(n.Name, value); err != nil {
		return store.Note{}, err
	}
	unlock, err := s.enter(ctx)
	if err != nil {
		return store.Note{}, fmt.Errorf("replace note %s: %w", n.Name, err)
	}
	defer unlock()
	if there, ok := s.notes[n.Name]; !ok || there.note.Revision != n.Revision {
		return store.Note{}, fmt.Errorf("replace note %s: %w", n.Name, store.ErrStale)
	}
	s.revision++
	next := store.Note{Name: n.Name, Value: bytes.Clone(value), Revision: s.revision}
	s.notes[n.Name] = noteRecord{next, 0}
	return copyNote(next), nil
}

func copyNote(n store.Note) store.Note {
	n.Value = bytes.Clone(n.Value)
	return n
}

// ListNotes returns notes by name.
func (s *Store) ListNotes(ctx context.Context, prefix string) ([]store.Note, error) {
	unlock, err := s.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("list notes: %w", err)
	}
	defer unlock()
	var list []store.Note
	for _, name := range slices.Sorted(maps.Keys(s.notes)) {
		if strings.HasPrefix(name, prefix) {
			list = append(list, copyNote(s.notes[name].note))
		}
	}
	return list, nil
}

// DropNote deletes a note.
func (s *Store) DropNote(ctx context.Context, n store.Note) error {
	unlock, err := s.enter(ctx)
	if err != nil {
		return fmt.Errorf("drop note %s: %w", n.Name, err)
	}
	defer unlock()
	if there, ok := s.notes[n.Name]; ok && (n.Revision == 0 || there.note.Revision == n.Revision) {
		s.revision++
		delete(s.notes, n.Name)
	}
	return nil
}
