package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/gateway/fastpath"
	"holdfast/internal/sessions/gateway/upstream"
)

// front accepts the clients' connections and serves their plain requests. It gives a
// connection to net/http with its first request that is not plain, and is the listener of
// that server.
type front struct {
	gateway *Gateway
	ln      net.Listener
	tls     *tls.Config // nil: plain HTTP
	handed  chan net.Conn
	over    chan struct{} // closed when net/http accepts no more connections
	close   func()        // closes over

	serving sync.WaitGroup // connections that net/http does not have, and complete requests that it has not read
	closing atomic.Bool
	mu      sync.Mutex
	conns   map[*fastConn]struct{}
}

func newFront(g *Gateway, ln net.Listener) *front {
	f := &front{gateway: g, ln: ln, handed: make(chan net.Conn), over: make(chan struct{}), conns: map[*fastConn]struct{}{}}
	f.close = sync.OnceFunc(func() { close(f.over) })
	if g.tls != nil {
		f.tls = g.tls.Clone()
		f.tls.NextProtos = []string{"h2", "http/1.1"}
	}
	return f
}

// start begins to serve connections. The channel receives one error or nil when srv, the server
// of net/http, is shut down. The caller calls shutdown before that, and after start has returned.
func (f *front) start(ctx context.Context, srv *http.Server) chan error {
	failed, end := make(chan error, 1), make(chan error, 1)
	f.serving.Go(func() {
		err := f.accept(ctx)
		if err != nil {
			f.close() // ends srv.Serve
		}
		failed <- err
	})
	go func() {
		err := srv.Serve(f)
		if err == http.ErrServerClosed {
			err = nil
		}
		end <- cmp.Or(<-failed, err)
	}()
	return end
}

// accept serves connections until the listener is closed. The error is that of a listener that
// something else than shutdown has closed.
func (f *front) accept(ctx context.Context) error {
	for {
		c, err := f.ln.Accept()
		switch {
		case err == nil:
			f.serving.Go(func() { f.serve(ctx, c) })
		case f.closing.Load():
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			f.gateway.log.Warn("the gateway accepts no connections at the moment", "err", err)
			_ = tasks.Sleep(ctx, acceptPause)
		}
	}
}

// Accept implements net.Listener for net/http.
func (f *front) Accept() (net.Conn, error) {
	select {
	case c := <-f.handed:
		return c, nil
	case <-f.over:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener for net/http.
func (f *front) Close() error {
	f.close()
	return nil
}

// Addr implements net.Listener.
func (f *front) Addr() net.Addr { return f.ln.Addr() }

// give gives a connection to net/http, or closes it if that server has ended.
func (f *front) give(c net.Conn) {
	_ = c.SetDeadline(time.Time{}) // fails on a closed connection only
	select {
	case f.handed <- c:
	case <-f.over:
		c.Close()
	}
}

// serve serves a new connection.
func (f *front) serve(ctx context.Context, raw net.Conn) {
	c := &fastConn{front: f, conn: raw, raw: raw, in: make([]byte, firstRead)}
	c.setRemote(raw.RemoteAddr())
	f.mu.Lock()
	f.conns[c] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.conns, c)
	}()
	if f.tls == nil || c.handshake(ctx) {
		c.serve(ctx)
	}
}

// handshake begins TLS. It gives connections of HTTP/2 to net/http, and those whose handshake
// fails, to which net/http has an answer.
func (c *fastConn) handshake(ctx context.Context) bool {
	f := c.front
	secure := tls.Server(&joinedConn{Conn: c.raw}, f.tls)
	_ = c.raw.SetDeadline(time.Now().Add(f.gateway.cfg.HeaderTimeout))
	c.idle.Store(true)
	defer c.idle.Store(false)
	if f.closing.Load() {
		c.raw.Close()
		return false
	}
	if secure.HandshakeContext(ctx) != nil || secure.ConnectionState().NegotiatedProtocol == "h2" {
		f.give(secure)
		return false
	}
	_ = c.raw.SetDeadline(time.Time{})
	c.conn, c.secure = secure, secure
	return true
}

// shutdown closes the listener, ends the connections without a request, and returns when
// net/http has the others or their requests have ended. It closes the rest when ctx is done.
func (f *front) shutdown(ctx context.Context) {
	f.closing.Store(true)
	f.ln.Close()
	f.each(func(c *fastConn) {
		if c.idle.Load() {
			c.wake()
		}
	})
	unhook := context.AfterFunc(ctx, func() { f.each(func(c *fastConn) { c.raw.Close() }) })
	defer unhook()
	f.serving.Wait()
}

func (f *front) each(do func(*fastConn)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		do(c)
	}
}

// firstRead is the size of the buffer of a connection. A request that is larger goes to
// net/http, which reads these bytes into a buffer of the same size at once.
const firstRead = 4 << 10

// fastConn is a connection whose requests were plain so far. Its goroutine uses it.
type fastConn struct {
	front   *front
	raw     net.Conn  // as it was accepted
	conn    net.Conn  // raw, or TLS on it
	secure  *tls.Conn // conn, nil without TLS
	client  netip.Addr
	remote  string // the address without the port
	in      []byte
	request fastpath.Request
	answer  fastpath.Response

	idle    atomic.Bool // waits for a request
	readBy  upstream.Deadline
	writeBy upstream.Deadline
}

func (c *fastConn) setRemote(addr net.Addr) {
	remote := addr.String()
	c.client = clientOf(remote)
	c.remote, _, _ = net.SplitHostPort(remote)
}

// serve serves requests until one is not plain or the connection ends.
func (c *fastConn) serve(ctx context.Context) {
	wait := c.front.gateway.cfg.HeaderTimeout // of the first one, as with net/http
	for {
		n, err := c.next(wait)
		if err != nil {
			c.conn.Close()
			return
		}
		switch b, how := c.handle(ctx, c.in[:n]); how {
		case handOver:
			c.giveTo(b, c.in[:n])
			return
		case hangUp:
			c.conn.Close()
			return
		}
		wait = c.front.gateway.cfg.IdleTimeout
	}
}

// giveTo gives the connection to net/http, which reads the bytes ahead first. They are a
// request, and b is that one if it was begun.
func (c *fastConn) giveTo(b *begun, ahead []byte) {
	h := &handedConn{Conn: c.conn, front: c.front, ahead: ahead, begun: b}
	// A net/http that shuts down drops requests without an answer.
	if h.awaited = b != nil || bytes.Contains(ahead, []byte("\r\n\r\n")); h.awaited {
		c.front.serving.Add(1)
	}
	if c.secure != nil {
		c.front.give(secureConn{h})
	} else {
		c.front.give(h)
	}
}

// lastLook is how long a connection is read once more when the gateway ends. A request that has arrived
// is there at once; a busy host may not have let the gateway read it.
const lastLook = 5 * time.Millisecond

// next reads the first bytes of the next request.
func (c *fastConn) next(wait time.Duration) (n int, err error) {
	if by, renew := c.readBy.Renew(wait); renew {
		_ = c.conn.SetReadDeadline(by)
	}
	c.idle.Store(true)
	if !c.front.closing.Load() {
		n, err = c.conn.Read(c.in)
	}
	c.idle.Store(false)
	if n > 0 || !c.front.closing.Load() {
		return n, err
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(lastLook))
	return c.conn.Read(c.in)
}

// wake ends the wait for a request.
func (c *fastConn) wake() { _ = c.raw.SetReadDeadline(time.Unix(1, 0)) }

// write writes to the client. It reports whether it succeeded.
func (c *fastConn) write(b []byte) bool {
	g := c.front.gateway
	if by, renew := c.writeBy.Renew(g.cfg.WriteTimeout); renew {
		_ = c.conn.SetWriteDeadline(by)
	}
	_, err := c.conn.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		g.metrics.slowReaders.Inc()
	}
	return err == nil
}

// handedConn is a connection that net/http serves from its first request that was not plain.
type handedConn struct {
	net.Conn
	front   *front
	ahead   []byte // read already
	mu      sync.Mutex
	begun   *begun // the first request; nil: nothing of it was sent
	awaited bool   // shutdown waits until net/http has read the first request
}

// Read returns first what was read already.
func (c *handedConn) Read(b []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(b, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// take returns the first request if it was sent already. Only the first call does.
func (c *handedConn) take() *begun {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.begun
	c.begun = nil
	if c.awaited {
		c.awaited = false
		c.front.serving.Done()
	}
	return b
}

// Close closes the connection. A request that net/http has not read ends.
func (c *handedConn) Close() error {
	if b := c.take(); b != nil {
		b.end()
	}
	return c.Conn.Close()
}

// CloseWrite serves net/http.
func (c *handedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// NetConn returns the connection below TLS, or without TLS. It serves relay.Socket.
func (c *handedConn) NetConn() net.Conn {
	if secure, ok := c.Conn.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return c.Conn
}

// secureConn is a handedConn with TLS. net/http looks for its method.
type secureConn struct{ *handedConn }

// handed returns the connection as the fast path has given it to net/http, nil for another.
func handed(c net.Conn) *handedConn {
	switch c := c.(type) {
	case *handedConn:
		return c
	case secureConn:
		return c.handedConn
	}
	return nil
}

// ConnectionState serves net/http, which tells requests by it.
func (c secureConn) ConnectionState() tls.ConnectionState {
	return c.Conn.(*tls.Conn).ConnectionState()
}
