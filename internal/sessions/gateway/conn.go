package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/gateway/relay"
)

// errHangup is the cause of a context that ended because the client hung up.
var errHangup = errors.New("the client has gone")

// hangupCheck is the interval at which the connection of a parked request with
// a body is checked.
const hangupCheck = 100 * time.Millisecond

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// hangupContext returns a context that ends when the client hangs up. net/http
// detects that itself, except on HTTP/1 while the body of the request is
// unread, as it is while the request is parked. unwatch stops the checks and
// leaves the context alone.
func hangupContext(r *http.Request) (ctx context.Context, unwatch func()) {
	if r.ProtoMajor != 1 || r.ContentLength == 0 {
		return r.Context(), func() {}
	}
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	raw := relay.Socket(conn)
	if raw == nil {
		return r.Context(), func() {}
	}
	return watchHangup(r.Context(), raw)
}

// watchHangup is hangupContext for a socket.
func watchHangup(ctx context.Context, raw syscall.RawConn) (_ context.Context, unwatch func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	go func() {
		tick := time.NewTicker(hangupCheck)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if hungUp(raw) {
					cancel(errHangup)
					return
				}
			case <-stop:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { close(stop) }
}

// hungUp reports whether the peer has closed its sending direction. net/http
// also treats that as a client that has gone. The result is the same when
// unread bytes are buffered.
func hungUp(raw syscall.RawConn) bool {
	gone := false
	err := raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0
	})
	return gone || err != nil
}

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

// begunBy returns the request that the fast path has begun, if r is that one.
func begunBy(r *http.Request) *begun {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	if h := handed(c); h != nil {
		return h.take()
	}
	return nil
}

// takeOut returns the connection itself and a function to call when it is
// closed.
func takeOut(c net.Conn) (net.Conn, func()) {
	if h := handed(c); h != nil {
		c = h.Conn
	}
	if l, ok := c.(*limitedConn); ok {
		return l.TCPConn, l.free
	}
	return c, func() {}
}
