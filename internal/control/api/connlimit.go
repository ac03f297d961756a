package api

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// connLimit keeps the number of a server's connections, without the hijacked ones, at
// max. At the limit a new connection closes the one that has been idle, without a
// request, for longest. A partly sent header is not a request yet, so a client that
// only connects cannot keep other clients out. If all connections have a request, the
// new one is closed.
type connLimit struct {
	max int

	mu    sync.Mutex
	conns map[net.Conn]*list.Element // nil while a request is served
	idle  *list.List                 // of net.Conn, longest idle first
}

func newConnLimit(most int) *connLimit {
	return &connLimit{max: most, conns: map[net.Conn]*list.Element{}, idle: list.New()}
}

// watch is an http.Server's ConnState.
func (c *connLimit) watch(conn net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		if out := c.add(conn); out != nil {
			// The server notices the close. TLS sends no close_notify: that write could
			// wait for the client that is closed.
			_ = raw(out).Close()
		}
	case http.StateClosed, http.StateHijacked:
		c.remove(conn)
	}
}

// add registers a connection, and returns the connection that must be closed for it.
func (c *connLimit) add(conn net.Conn) (out net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[conn] = c.idle.PushBack(conn)
	if len(c.conns) <= c.max {
		return nil
	}
	out = c.idle.Front().Value.(net.Conn)
	c.removeLocked(out)
	return out
}

func (c *connLimit) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(conn)
}

func (c *connLimit) removeLocked(conn net.Conn) {
	if e := c.conns[conn]; e != nil {
		c.idle.Remove(e)
	}
	delete(c.conns, conn)
}

// serves marks the connection in ctx as busy with a request until the returned function
// is called.
func (c *connLimit) serves(ctx context.Context) (over func()) {
	conn, ok := ctx.Value(connKey{}).(net.Conn)
	if !ok {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.conns[conn]; e != nil {
		c.idle.Remove(e)
		c.conns[conn] = nil
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if e, ok := c.conns[conn]; ok && e == nil {
			c.conns[conn] = c.idle.PushBack(conn)
		}
	}
}

type connKey struct{}

// withConn adds its connection to a request's context.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// raw returns the connection below TLS.
func raw(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}
