package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"holdfast"
)

// Note is a small value that nodes share, besides sessions and records of nodes: the
// doctor's findings about a host, a baseline, or a lock.
type Note struct {
	Name     string
	Value    []byte
	Revision holdfast.Revision // of its last write
}

// Bounds of a note.
const (
	MaxNoteName  = 255
	MaxNoteValue = 64 << 10
)

// Notes keeps notes. All methods may be called from any goroutine; each returns when
// ctx is done. A note under a lease disappears with it; a note under lease 0 stays
// until it is dropped.
type Notes interface {
	// PutNote writes a note, and replaces one of that name. ErrLeaseGone.
	PutNote(ctx context.Context, name string, value []byte, id LeaseID) error

	// TakeNote writes a note if there is none of that name, and returns it. If there
	// is one, it returns that note and ErrTaken. ErrLeaseGone.
	TakeNote(ctx context.Context, name string, value []byte, id LeaseID) (Note, error)

	// SwapNote replaces the value of a note if its revision is still n.Revision, and
	// returns it with its new revision. The note stays until it is dropped. ErrStale if
	// the note has changed or is gone.
	SwapNote(ctx context.Context, n Note, value []byte) (Note, error)

	// ListNotes returns the notes with names that begin with prefix, by name.
	ListNotes(ctx context.Context, prefix string) ([]Note, error)

	// DropNote deletes a note if its revision is still the given one, or any with
	// revision 0. A note that is gone or has changed is no error.
	DropNote(ctx context.Context, n Note) error
}

// FindNote returns the note with a name. holdfast.ErrNotFound.
func FindNote(ctx context.Context, from Notes, name string) (Note, error) {
	notes, err := from.ListNotes(ctx, name)
	if err != nil {
		return Note{}, err
	}
	for _, n := range notes {
		if n.Name == name {
			return n, nil
		}
	}
	return Note{}, fmt.Errorf("note %s: %w", name, holdfast.ErrNotFound)
}

// writersBefore is how often ChangeNote repeats a write that other writers come before.
const writersBefore = 20

// ChangeNote reads the JSON in a note, changes it by f and writes it, and repeats that if
// another writer came before. It returns what it has written. If f returns an error, nothing
// is written, and the error is f's. holdfast.ErrNotFound; holdfast.ErrBusy if others write all
// the time. After an error of the store the note may be either.
func ChangeNote[T any](ctx context.Context, in Notes, name string, f func(*T) error) (T, error) {
	for range writersBefore {
		var v T
		n, err := FindNote(ctx, in, name)
		if err != nil {
			return v, err
		}
		if err := json.Unmarshal(n.Value, &v); err != nil {
			return v, fmt.Errorf("note %s: %w", name, err)
		}
		if err := f(&v); err != nil {
			return v, err
		}
		value, err := json.Marshal(v)
		if err != nil {
			return v, fmt.Errorf("note %s: %w", name, err)
		}
		if _, err = in.SwapNote(ctx, n, value); !errors.Is(err, ErrStale) {
			return v, err
		}
	}
	var none T
	return none, fmt.Errorf("note %s changes all the time: %w", name, holdfast.ErrBusy)
}

// goodName is the form of a note's name: words separated by slashes, of the
// characters that node ids may have.
var goodName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[!-.0-~]+(/[!-.0-~]+)*$`) })

// CheckNote refuses a name or a value that stores do not accept.
func CheckNote(name string, value []byte) error {
	switch {
	case len(name) > MaxNoteName || !goodName().MatchString(name):
		return fmt.Errorf("%q is not a valid name of a note", name[:min(len(name), MaxNoteName)])
	case len(value) > MaxNoteValue:
		return fmt.Errorf("note %s has %d bytes, at most %d are kept", name, len(value), MaxNoteValue)
	}
	return nil
}
