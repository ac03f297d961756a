package holdfast

import (
	"errors"
	"fmt"
)

// Errors that callers decide by, across packages. They are wrapped with what
// was being done; test with errors.Is.
var (
	ErrNotFound = errors.New("not found")                 // no such session, node or container
	ErrDraining = errors.New("node is draining")          // this node takes no new session
	ErrStopped  = errors.New("stopped meanwhile")         // somebody stopped the session that was asked for
	ErrBusy     = errors.New("too many waiting")          // a bound on parked requests or boots is reached
	ErrEngine   = errors.New("engine unavailable")        // the container engine does not answer
	ErrStore    = errors.New("store unavailable")         // the ownership store does not answer
	ErrNoMemory = errors.New("its memory cannot be kept") // the session cannot be suspended, and goes on
)

// ElsewhereError says that another node owns the session: ask there.
type ElsewhereError struct {
	Owner Owner // as the store had it
}

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("session %s is node %s's", e.Owner.Key, e.Owner.Node)
}

// BootError says why a session's container did not become ready.
type BootError struct {
	Key   SessionKey
	Phase string // queue, claim, pull, init, create, start or ready
	Err   error
	// Log is the container's last lines, at most a few kilobytes; empty
	// where it never ran.
	Log string
}

func (e *BootError) Error() string {
	return fmt.Sprintf("session %s: %s: %v", e.Key, e.Phase, e.Err)
}

func (e *BootError) Unwrap() error { return e.Err }

// Hinter is an error that can say what to do about it. The command line prints
// it as the hint: line, the API as the field "hint".
type Hinter interface{ Hint() string }

// WithHint returns err with a hint. Error() stays as it is.
func WithHint(err error, hint string) error { return &hinted{err, hint} }

type hinted struct {
	error
	hint string
}

func (h *hinted) Hint() string  { return h.hint }
func (h *hinted) Unwrap() error { return h.error }

// HintOf returns the outermost hint in err's chain, "" where there is none.
func HintOf(err error) string {
	var h Hinter
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}
