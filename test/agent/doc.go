// Package agent tests the whole agent: the built program, on a real engine, with an embedded
// store or an etcd. The tests use its command line, and HTTP and WebSocket clients.
package agent
