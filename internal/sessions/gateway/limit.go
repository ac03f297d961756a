package gateway

import (
	"net"
	"sync"
)

// limitListener accepts so many connections that are open at once; those that
// come then wait in the kernel's queue until one is closed. It differs from
// x/net's netutil in that a connection can be taken out of it: the relay works
// on the sockets themselves, and tells when they are closed.
type limitListener struct {
	net.Listener
	slots chan struct{}
	once  sync.Once
	ended chan struct{}
}

func newLimitListener(ln net.Listener, n int) *limitListener {
	return &limitListener{Listener: ln, slots: make(chan struct{}, n), ended: make(chan struct{})}
}

// Accept waits for a place first.
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.ended:
		return nil, net.ErrClosed
	}
	free := sync.OnceFunc(func() { <-l.slots })
	c, err := l.Listener.Accept()
	if err != nil {
		free()
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok { // nobody listens on anything else
		free()
		return c, nil
	}
	return &limitedConn{tcp, free}, nil
}

func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.ended) })
	return l.Listener.Close()
}

// limitedConn has a place in a limitListener.
type limitedConn struct {
	*net.TCPConn
	free func()
}

// Close gives the place up, too.
func (c *limitedConn) Close() error {
	defer c.free()
	return c.TCPConn.Close()
}

// takeOut returns the connection itself, and what is to be called when it is
// closed.
func takeOut(c net.Conn) (net.Conn, func()) {
	if l, ok := c.(*limitedConn); ok {
		return l.TCPConn, l.free
	}
	return c, func() {}
}
