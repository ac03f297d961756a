package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errHangup is the cause of a context whose client has gone.
var errHangup = errors.New("the client has gone")

// hangupCheck is how often a parked request with a body looks for its client.
const hangupCheck = 100 * time.Millisecond

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// hangupContext returns a context that ends when the client hangs up. net/http
// notices that by itself, except on HTTP/1 while the request's body is unread,
// which it is as long as the request is parked. unwatch ends the watching, not
// the context.
func hangupContext(r *http.Request) (ctx context.Context, unwatch func()) {
	if r.ProtoMajor != 1 || r.ContentLength == 0 {
		return r.Context(), func() {}
	}
	raw := rawConn(r.Context())
	if raw == nil {
		return r.Context(), func() {}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
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

// rawConn is the client's socket, nil where there is none.
func rawConn(ctx context.Context) syscall.RawConn {
	c, _ := ctx.Value(connKey{}).(net.Conn)
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// hungUp reports whether the peer has shut its sending side, which net/http
// takes for a client that has gone, too. Unread bytes do not hide it.
func hungUp(raw syscall.RawConn) bool {
	gone := false
	err := raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0
	})
	return gone || err != nil
}
