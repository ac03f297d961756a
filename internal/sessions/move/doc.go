// Package move carries the memory of sessions to their next life: to another node
// while a node is drained, or to disk while a session is suspended.
//
// An image is what runsc saved of a container. It is bound to one session and to
// the epoch that it was taken in, it is complete or not used at all, and it is used
// once. On the network an image is a stream (Pack, Unpack); on disk an ImageStore
// keeps it encrypted.
//
// The Mover joins these with the container runtime, the store, and the other
// nodes. package session calls it through its interface Mover.
package move
