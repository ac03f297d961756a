package gateway

import (
	"net"
	"sync"
)

// limitListener limits the number of open connections. Further connections wait
// in the kernel's queue until one is closed. Unlike netutil.LimitListener of
// golang.org/x/net, a connection can be taken out: the relay works on the
// sockets themselves and reports when they are closed.
type limitListener struct {
	net.Listener
	slots chan struct{}
	once  sync.Once
	ended chan struct{}
}

func newLimitListener(ln net.Listener, n int) *limitListener {
	return &limitListener{Listener: ln, slots: make(chan struct{}, n), ended: make(chan struct{})}
}

// Accept waits for a free slot and then for a connection.
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
	if !ok { // every listener in use is a TCP listener
		free()
		return c, nil
	}
	return &limitedConn{tcp, free}, nil
}

func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.ended) })
	return l.Listener.Close()
}

// limitedConn occupies a slot of a limitListener.
type limitedConn struct {
	*net.TCPConn
	free func()
}

// Close closes the connection and frees its slot.
func (c *limitedConn) Close() error {
	defer c.free()
	return c.TCPConn.Close()
}

// takeOut returns the connection itself and a function to call when it is
// closed.
func takeOut(c net.Conn) (net.Conn, func()) {
	if l, ok := c.(*limitedConn); ok {
		return l.TCPConn, l.free
	}
	return c, func() {}
}
