package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"

	"holdfast"
	"holdfast/internal/sessions/gateway/upstream"
)

// roundTrip sends a request to its session and returns the response. If the server
// agrees to an upgrade, the error is a *switched. A request from another node is
// tried once; that node decides about another try. The request's body is replaced.
func (g *Gateway) roundTrip(req *http.Request, t *request) (resp *http.Response, err error) {
	if req.Body != nil {
		t.body = &body{r: req.Body}
		if req.Trailer != nil {
			t.body.r = trailed{req.Body, &req.Trailer}
		}
		req.Body = t.body
	}
	t.again = idempotent(req.Method)
	send := func() (err error) {
		resp, err = g.send(req, t)
		return err
	}
	if t.forwarded {
		err = t.attempt(send)
		return resp, err
	}
	err = t.reach(t.waiting, send)
	t.unwatch()
	return resp, err
}

// send sends the request along its route. If a kept-alive connection is dead
// before anything was written, it takes the next one; the pool holds at most
// idlePerNode of them.
func (g *Gateway) send(req *http.Request, t *request) (*http.Response, error) {
	for n := 0; ; n++ {
		if t.body != nil && !t.body.again() {
			return nil, errSpent
		}
		y := &try{request: t}
		resp, err := y.do(g, req)
		refused, ok := errors.AsType[*refusedError](err)
		if !y.reused || !ok || !refused.unsent || n > idlePerNode {
			return resp, err
		}
	}
}

// try is one request on one connection. It implements upstream.Events.
type try struct {
	request  *request
	conn     *upstream.CountedConn // nil: the pool returned none
	reused   bool                  // conn carried other requests before
	before   int64                 // bytes that conn had written before
	sent     bool                  // on an earlier connection, as net/http retries too, or by the fast path
	answered atomic.Bool           // a byte of the answer arrived
	offer    offer                 // of a body, to another node

	interims sync.Mutex
	over     bool // see end
}

// do sends the request and waits for the header of its response.
func (y *try) do(g *Gateway, req *http.Request) (*http.Response, error) {
	t := y.request
	ctx := req.Context()
	if t.route.Node == "" {
		resp, err := y.roundTrip(g, req)
		return resp, y.explain(ctx, err)
	}
	out := req.WithContext(httptrace.WithClientTrace(context.WithValue(ctx, routeKey{}, t.route), y.trace()))
	u := *req.URL
	u.Scheme, u.Host = "http", poolHost(t.route)
	out.URL = &u
	resp, err := y.forward(g, out)
	err = y.explain(ctx, err)
	g.metrics.forwarded.WithLabelValues(resultOf(err)).Inc()
	return resp, err
}

// roundTrip sends the request to the server or the node of the route.
func (y *try) roundTrip(g *Gateway, out *http.Request) (*http.Response, error) {
	t := y.request
	if t.raw && t.route.Node == "" {
		return g.dialRaw(out, t)
	}
	if name := out.Header.Get("Upgrade"); name != "" {
		if t.mayUpgrade(name) {
			return g.roundTripUpgrade(out, y)
		}
		out = out.Clone(out.Context())
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	var resp *http.Response
	var err error
	if begun, received := t.takeBegun(); begun != nil {
		y.sent = true
		resp, err = g.pool.Resume(out, *begun, received, y)
	} else if t.route.Node == "" {
		route := t.route
		dial := func(ctx context.Context) (net.Conn, error) { return g.dial(ctx, route) }
		resp, err = g.pool.RoundTrip(out, serverKey(route), dial, y)
	} else {
		resp, err = g.nodes.RoundTrip(out)
	}
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		// The transport has given the connection up, so close it here.
		resp.Body.Close()
		return nil, errUnasked
	}
	return resp, err
}

// Connected implements upstream.Events.
func (y *try) Connected(c *upstream.CountedConn, reused bool) {
	y.connected(c, reused)
	if t := y.request; t.forwarded && t.body != nil && t.body.first() != nil {
		c.Close() // nothing may reach the session: see PeerForwardHandler
	}
}

func (y *try) connected(c *upstream.CountedConn, reused bool) {
	y.sent = y.sent || y.wrote()
	y.conn, y.reused, y.before = c, reused, c.Written()
}

// Answered implements upstream.Events.
func (y *try) Answered() { y.answered.Store(true) }

// Interim implements upstream.Events.
func (y *try) Interim(status int, header http.Header) {
	if a := y.request.answer; a != nil {
		a.interim(status, header)
	}
}

// trace records what happens to a request to another node. The callbacks run in
// goroutines of the transport, Got1xxResponse also after the response.
func (y *try) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			if c, ok := info.Conn.(*upstream.CountedConn); ok {
				y.connected(c, info.Reused)
			}
		},
		GotFirstResponseByte: y.Answered,
		Got100Continue: func() {
			y.offer.accept()
			y.answered.Store(false) // that byte came from the other gateway
		},
		Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			y.interims.Lock()
			defer y.interims.Unlock()
			if !y.over {
				y.Interim(status, http.Header(header))
			}
			return nil
		},
	}
}

// end drops the interim responses that arrive from now on.
func (y *try) end() {
	y.interims.Lock()
	defer y.interims.Unlock()
	y.over = true
}

// wrote reports whether anything was written to the current connection.
func (y *try) wrote() bool { return y.conn != nil && y.conn.Written() != y.before }

// explain converts err into an error that tells whether another try may follow.
// ctx is that of the client.
func (y *try) explain(ctx context.Context, err error) error {
	t := y.request
	switch {
	case err == nil, is[*refusedError](err), is[*brokenError](err), is[*switched](err), is[*portError](err):
		return err
	case ctx.Err() != nil, y.conn == nil, t.body != nil && t.body.failed():
		return err
	case y.offer.withdrawn():
		return &refusedError{error: err}
	case errors.Is(err, errNodeLeft) && !y.offer.open():
		return &brokenError{error: err, gone: true}
	case !y.sent && !y.wrote() && !errors.Is(err, errNodeLeft):
		return &refusedError{error: err, byServer: t.route.Node == "", unsent: true}
	case y.offer.open():
		return &refusedError{error: err}
	case y.answered.Load(), timedOut(err):
		return err
	}
	return &brokenError{error: err, gone: t.route.Node != ""}
}

// errNodeLeft ends a forwarded request when its session has left the other
// node. No answer will come, and if that machine has vanished, the connection
// does not end either.
var errNodeLeft = errors.New("the session has left the node that the request was sent to")

// refusedError reports that no byte of a request reached its session.
type refusedError struct {
	error
	// byServer is true if the server of the session refused the connection
	// although its node has the session.
	byServer bool
	// unsent is true if the connection broke before anything was written to it.
	unsent bool
}

func (e *refusedError) Unwrap() error { return e.error }

// brokenError reports that the connection ended before the first byte of the
// answer, after the request was sent or may have been sent.
type brokenError struct {
	error
	// gone is true if the node that received the request will not answer: it has
	// vanished, or reports that the session left it.
	gone bool
	// unsure is true if the session has left and the request cannot be sent
	// again, because it may have been carried out.
	unsure bool
}

func (e *brokenError) Unwrap() error { return e.error }

// lateError reports that a session on another node did not begin its answer in
// time.
type lateError struct{ node holdfast.NodeID }

func (e *lateError) Error() string {
	return fmt.Sprintf("the session on node %s did not begin its answer in time", e.node)
}

// Timeout makes explain answer with 504.
func (e *lateError) Timeout() bool { return true }

// timedOut reports whether err wraps an error that is a timeout.
func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// is reports whether err wraps an error of type E.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// keptBody is how many bytes of a request's body are kept for another try. It
// is larger than what is read before the first byte is written: the buffers of
// net/http (4 KiB) and io.Copy (32 KiB).
const keptBody = 64 << 10

// errSpent reports that a body cannot be read again.
var errSpent = errors.New("too much of the request's body was read for another try")

// body is the body of a request. It can be read again from its start until more
// than keptBody bytes were read. Close does nothing, because a failed try
// closes its request's body. One goroutine at a time may use it.
type body struct {
	r    io.Reader
	kept []byte // everything that was read, unless spent
	at   int    // read position of the current try in kept
	err  error  // from r, including io.EOF
	gone bool   // more than keptBody bytes were read
}

// again makes the next Read start at the beginning. It returns false if that is
// impossible, also when the client ended the body early.
func (b *body) again() bool {
	b.at = 0
	return !b.spent()
}

func (b *body) spent() bool { return b.gone || b.failed() }

// failed reports whether reading the body ended with an error before its end.
func (b *body) failed() bool { return b.err != nil && b.err != io.EOF }

func (b *body) Read(p []byte) (int, error) {
	if b.at < len(b.kept) {
		n := copy(p, b.kept[b.at:])
		b.at += n
		return n, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.r.Read(p)
	b.err = err
	if b.gone = b.gone || len(b.kept)+n > keptBody; b.gone {
		b.kept, b.at = nil, 0
	} else {
		b.kept = append(b.kept, p[:n]...)
		b.at = len(b.kept)
	}
	return n, err
}

func (b *body) Close() error { return nil }

// first waits until the body has a first byte or ends, and leaves the bytes
// unread. The error is that of the body.
func (b *body) first() error {
	if len(b.kept) == 0 && b.err == nil {
		var buf [512]byte
		if _, err := b.Read(buf[:]); err != nil && err != io.EOF {
			return err
		}
		b.at = 0
	}
	if b.failed() {
		return b.err
	}
	return nil
}
