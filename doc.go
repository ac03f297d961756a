// Package holdfast defines the terms of the product as types: the session key, the
// node, the owner's record with its epoch, the states of a session, and the timing
// that prevents two containers for one session.
//
// It imports only the standard library. Every other package may import it.
package holdfast
