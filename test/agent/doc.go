// Package agent tests a whole agent as its users have it: the built binary, on
// a real engine, with an embedded etcd, driven by its own command line and by
// HTTP and WebSocket clients.
package agent
