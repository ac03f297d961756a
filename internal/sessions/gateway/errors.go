package gateway

import (
	"errors"
	"fmt"

	"holdfast"
)

// errNodeLeft ends a forwarded request whose session has left its node: no
// answer will come, and where the machine has vanished, no end either.
var errNodeLeft = errors.New("the session has left the node that was asked")

// refusedError says that nothing of a request has reached its session.
type refusedError struct {
	error
	// byServer says that the session's own server refused the connection,
	// although its node has the session.
	byServer bool
	// unsent says that a connection broke with nothing written to it.
	unsent bool
}

func (e *refusedError) Unwrap() error { return e.error }

// brokenError says that a request was sent, or may have been, and that the
// connection ended before the first byte of an answer.
type brokenError struct {
	error
	// gone says that it will not be answered by whom it was sent to: the
	// other node has vanished, or says that the session has left it.
	gone bool
	// unsure says that the session is gone, and that the request cannot be
	// sent again: it may have been carried out.
	unsure bool
}

func (e *brokenError) Unwrap() error { return e.error }

// lateError says that another node's session did not answer in time.
type lateError struct{ node holdfast.NodeID }

func (e *lateError) Error() string {
	return fmt.Sprintf("the session on node %s did not begin its answer in time", e.node)
}

// Timeout has explain take it for what it is.
func (e *lateError) Timeout() bool { return true }

// Temporary makes it a net.Error.
func (e *lateError) Temporary() bool { return true }
