package api

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// connLimit keeps the connections of a server, beside those that were hijacked,
// at max: where there would be more, the one is closed that has been without a
// request for longest. A header that comes slowly is no request yet, so that
// nobody who only connects can keep others out. Where all have a request, the
// new one is closed.
type connLimit struct {
	max int

	mu    sync.Mutex
	conns map[net.Conn]*list.Element // nil while a request is served
	idle  *list.List                 // of net.Conn, the longest first
}

func newConnLimit(most int) *connLimit {
	return &connLimit{max: most, conns: map[net.Conn]*list.Element{}, idle: list.New()}
}

// watch is an http.Server's ConnState.
func (c *connLimit) watch(conn net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		if out := c.add(conn); out != nil {
			// The server sees it. Of TLS nothing is told: that could wait for
			// the one who is closed.
			_ = raw(out).Close()
		}
	case http.StateClosed, http.StateHijacked:
		c.remove(conn)
	}
}

// add takes a connection in, and returns the one that has to go for it.
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

// serves says that the connection in ctx has a request, until the function that
// it returns is called.
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

// raw is what is below a connection's TLS.
func raw(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}
