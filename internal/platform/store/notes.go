package store

import (
	"context"
	"fmt"
	"regexp"

	"holdfast"
)

// Note is a small thing that nodes keep for each other beside sessions and records
// of nodes: what the doctor knows of a host, a baseline, whose turn something is.
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
// ctx is done. A note that hangs on a lease disappears with it; one on lease 0 stays
// until it is dropped.
type Notes interface {
	// PutNote writes a note, whatever was there. ErrLeaseGone.
	PutNote(ctx context.Context, name string, value []byte, id LeaseID) error

	// TakeNote writes a note if there is none of that name, and returns it. Where
	// there is one, it returns that and ErrTaken. ErrLeaseGone.
	TakeNote(ctx context.Context, name string, value []byte, id LeaseID) (Note, error)

	// ListNotes returns the notes whose names begin like this, by name.
	ListNotes(ctx context.Context, prefix string) ([]Note, error)

	// DropNote deletes a note if its revision is still the given one; with 0
	// whatever it is. One that is gone or has changed is no error.
	DropNote(ctx context.Context, n Note) error
}

// goodName is what a note may be called: words with slashes between them, of what
// the ids of nodes may have.
var goodName = regexp.MustCompile(`^[!-.0-~]+(/[!-.0-~]+)*$`)

// CheckNote refuses a name or a value that no store takes.
func CheckNote(name string, value []byte) error {
	switch {
	case len(name) > MaxNoteName || !goodName.MatchString(name):
		return fmt.Errorf("%q is no name of a note", name[:min(len(name), MaxNoteName)])
	case len(value) > MaxNoteValue:
		return fmt.Errorf("note %s has %d bytes, at most %d are kept", name, len(value), MaxNoteValue)
	}
	return nil
}
