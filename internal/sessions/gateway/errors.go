package gateway

import (
	"errors"
	"fmt"

	"holdfast"
)

// errNodeLeft ends a forwarded request when its session has left the other
// node. No answer will come, and if that machine has vanished, the connection
// does not end either.
var errNodeLeft = errors.New("the session has left the node that the request was sent to")

// refusedError reports that no byte of a request reached its session.
type refusedError struct {
	error
	// byServer is true if the server of the session refused the connection
	// although its node has the session.
	byServer bool
	// unsent is true if the connection broke before anything was written to it.
	unsent bool
}

func (e *refusedError) Unwrap() error { return e.error }

// brokenError reports that the connection ended before the first byte of the
// answer, after the request was sent or may have been sent.
type brokenError struct {
	error
	// gone is true if the node that received the request will not answer: it has
	// vanished, or reports that the session left it.
	gone bool
	// unsure is true if the session has left and the request cannot be sent
	// again, because it may have been carried out.
	unsure bool
}

func (e *brokenError) Unwrap() error { return e.error }

// lateError reports that a session on another node did not begin its answer in
// time.
type lateError struct{ node holdfast.NodeID }

func (e *lateError) Error() string {
	return fmt.Sprintf("the session on node %s did not begin its answer in time", e.node)
}

// Timeout makes explain answer with 504.
func (e *lateError) Timeout() bool { return true }

// timedOut reports whether err wraps an error that is a timeout.
func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// is reports whether err wraps an error of type E.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
