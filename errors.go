package holdfast

import (
	"errors"
	"fmt"
)

// Errors that callers in other packages test for with errors.Is. They are wrapped with
// the operation that failed.
var (
	ErrNotFound = errors.New("not found")                 // no such session, node or container
	ErrDraining = errors.New("node is draining")          // this node accepts no new session
	ErrStopped  = errors.New("stopped meanwhile")         // the requested session was stopped meanwhile
	ErrBusy     = errors.New("too many waiting")          // a bound on parked requests or boots is reached
	ErrEngine   = errors.New("engine unavailable")        // the container engine does not answer
	ErrStore    = errors.New("store unavailable")         // the ownership store does not answer
	ErrNoMemory = errors.New("its memory cannot be kept") // the session cannot be suspended and continues to run
	ErrExists   = errors.New("it exists already")         // a file of that name exists
	ErrNoSpace  = errors.New("no space is left")          // the container's disk or quota is full
	ErrBadFile  = errors.New("not that file")             // its type or place does not allow the operation
)

// ElsewhereError means that another node owns the session. The caller has to ask that
// node.
type ElsewhereError struct {
	Owner Owner // as read from the store
}

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("session %s is node %s's", e.Owner.Key, e.Owner.Node)
}

// BootError describes why a session's container did not become ready.
type BootError struct {
	Key   SessionKey
	Phase string // queue, claim, pull, init, create, start or ready
	Err   error
	// Log is the container's last lines, at most a few kilobytes. It is empty if the
	// container never ran.
	Log string
}

func (e *BootError) Error() string {
	return fmt.Sprintf("session %s: %s: %v", e.Key, e.Phase, e.Err)
}

func (e *BootError) Unwrap() error { return e.Err }

// Hinter is an error with a hint about the remedy. The command line prints it as the
// hint: line, the API as the field "hint".
type Hinter interface{ Hint() string }

// WithHint returns err with a hint. The text of Error does not change.
func WithHint(err error, hint string) error { return &hinted{err, hint} }

type hinted struct {
	error
	hint string
}

func (h *hinted) Hint() string  { return h.hint }
func (h *hinted) Unwrap() error { return h.error }

// HintOf returns the outermost hint in err's chain, or "" if there is none.
func HintOf(err error) string {
	var h Hinter
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}
