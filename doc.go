// Package holdfast holds the words of the product as types: the session key,
// the node, the owner's record with its epoch, the states a session walks
// through, and the timing that keeps a session from ever living twice.
//
// It imports nothing but the standard library; every other package may import
// it.
package holdfast
