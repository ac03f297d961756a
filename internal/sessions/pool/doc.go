// Package pool is what the pools of networks (pool/network) and of warm containers
// (pool/container) share: the loop that fills them while the node is idle, the backoff
// after a failure, and the start of a container that the deadman knows.
package pool
