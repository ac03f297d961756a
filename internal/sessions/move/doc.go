// Package move transfers the memory of sessions to their next epoch: to another node
// while a node is drained, or to disk while a session is suspended.
//
// An image is a container as runsc saved it. It is bound to one session and to
// the epoch in which it was taken. An incomplete image is not used, and an image is used
// once. On the network an image is a stream (Pack, Unpack); on disk an ImageStore
// keeps it encrypted.
//
// The Mover joins these with the container runtime, the store, and the other
// nodes. package session calls it through its interface Mover.
package move
