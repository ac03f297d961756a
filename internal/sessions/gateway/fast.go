package gateway

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/fastpath"
	"holdfast/internal/sessions/gateway/relay"
	"holdfast/internal/sessions/gateway/upstream"
)

// fastWait is how long the fast path waits for a server. After that net/http takes the
// connection, which notices a client that hangs up.
const fastWait = time.Second

// outcome is what happens to a connection after a request.
type outcome int

const (
	keep     outcome = iota // the response was passed on
	handOver                // net/http serves the request
	hangUp                  // the response broke off
)

// begun is a request that the fast path has sent, and what it occupies.
type begun struct {
	gateway *Gateway
	slot    slot
	route   holdfast.Route
	release func()
	server  upstream.Direct
	got     []byte // of the response
}

// end ends a request that net/http has not taken over.
func (b *begun) end() {
	b.server.End(false)
	b.leave()
}

// leave gives back what the request occupies, except its connection.
func (b *begun) leave() {
	if b.release != nil {
		b.release()
	}
	b.slot.free()
	b.gateway.handlers.leave()
}

// handle serves a request if it is plain and its session is ready. With handOver the begun
// request is nil if nothing was sent.
func (c *fastConn) handle(ctx context.Context, in []byte) (*begun, outcome) {
	g := c.front.gateway
	if !c.request.Parse(in) || g.finishing.Load() {
		return nil, handOver
	}
	t, ok := c.admit()
	if !ok {
		return nil, handOver
	}
	b, ok := c.begin(ctx, t)
	if !ok {
		return nil, handOver
	}
	how := c.exchange(ctx, &b, t)
	if how == handOver && b.server.Sent() {
		sent := b // only these are on the heap
		return &sent, how
	}
	if how == handOver {
		b.server.End(false)
	} else {
		g.metrics.plain.Inc()
	}
	b.leave()
	return nil, how
}

// admit makes the checks of route and admit, and returns the request's target. Without ok the
// answer is left to them.
func (c *fastConn) admit() (t target, ok bool) {
	g, q := c.front.gateway, &c.request
	if !g.cfg.knownHost(q.Host) {
		return t, false
	}
	t, err := g.cfg.clientTarget(q.Host, q.Path)
	if err != nil {
		return t, false
	}
	if q.Origin && !safe(q.Method) {
		return t, false
	}
	if limit := g.cfg.MaxBodyBytes; limit > 0 && int64(len(q.Body)) > limit {
		return t, false
	}
	return t, c.credentials(t)
}

// credentials checks the request's token. It removes the token and the login of the dashboard
// from the request.
func (c *fastConn) credentials(t target) bool {
	g, q := c.front.gateway, &c.request
	if g.tokens == nil && !slices.ContainsFunc(q.Fields, hasLogin) {
		return true
	}
	h := http.Header{}
	var others []fastpath.Field
	for _, f := range q.Fields {
		switch f.Kind {
		case fastpath.Authorization:
			h.Add("Authorization", f.Value)
		case fastpath.Cookie:
			h.Add("Cookie", f.Value)
		case fastpath.Referer:
			h.Add("Referer", f.Value)
		default:
			others = append(others, f)
		}
	}
	if g.tokens != nil {
		if _, _, inURL := takeField(strings.TrimPrefix(q.Query, "?")); inURL {
			return false
		}
		tokens := slices.Concat(takeBearer(h), takeCookies(h, cookieName(t, c.secure != nil)))
		if _, _, err := g.firstAllowed(t, tokens); err != nil {
			return false
		}
		takeReferer(h)
	}
	dropLogin(h)
	for name, values := range h {
		for _, value := range values {
			others = append(others, fastpath.Field{Name: name, Value: value})
		}
	}
	q.Fields = others
	return true
}

// hasLogin reports whether a field may have the login of the dashboard.
func hasLogin(f fastpath.Field) bool {
	return f.Kind == fastpath.Cookie && strings.Contains(f.Value, loginCookie)
}

// begin takes what a request needs: a place, its session if that is ready on this node, and a
// connection to its server. Without ok it has taken nothing.
func (c *fastConn) begin(ctx context.Context, t target) (b begun, ok bool) {
	g := c.front.gateway
	if !g.handlers.enter() {
		return b, false
	}
	b.gateway = g
	defer func() {
		if !ok {
			b.leave()
		}
	}()
	var err error
	if b.slot, err = g.slots.take(c.client); err != nil {
		return b, false
	}
	b.route, b.release, b.server, ok = g.readyServer(ctx, t)
	return b, ok
}

// readyServer takes the session of a target if it is ready on this node, and a connection to its
// server. Without ok it has taken nothing.
func (g *Gateway) readyServer(ctx context.Context, t target) (route holdfast.Route, release func(), server upstream.Direct, ok bool) {
	route, release, ok = g.sessions.Ready(t.key)
	if !ok {
		return route, nil, server, false
	}
	route, err := t.atPort(route)
	if err == nil && route.Node == "" && !closing.Closed(route.Left) {
		server, err = g.pool.Direct(ctx, serverKey(route), func(ctx context.Context) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, fastWait)
			defer cancel()
			return g.dial(ctx, route)
		})
		if err == nil {
			g.metrics.parkTime.Observe(0)
			return route, release, server, true
		}
	}
	release()
	return route, nil, server, false
}

// exchange sends the request and passes the response on.
func (c *fastConn) exchange(ctx context.Context, b *begun, t target) outcome {
	g := c.front.gateway
	in, out := g.buffers.Get(), g.buffers.Get()
	defer g.buffers.Put(in)
	defer g.buffers.Put(out)
	if b.server.Send(c.appendRequest(out[:0], t)) != nil {
		return handOver // the server may have answered before it closed the connection
	}
	n, _ := b.server.Receive(in[:], fastWait) // net/http gets the error again
	got := in[:n]
	if !c.answer.Parse(got) || c.answer.Length > g.cfg.MaxHeaderBytes {
		b.got = bytes.Clone(got)
		return handOver
	}
	body := got[c.answer.Length:]
	first := append(appendResponse(out[:0], &c.answer, c.request.Host, t), body...)
	if !c.write(first) || !c.copyRest(ctx, b, c.answer.Body-int64(len(body)), in[:]) {
		b.server.End(false)
		return hangUp
	}
	b.server.End(c.answer.Reuse)
	return keep
}

// copyRest passes on the rest of a body. It reports whether it succeeded.
func (c *fastConn) copyRest(ctx context.Context, b *begun, rest int64, buf []byte) bool {
	for rest > 0 {
		n, err := b.server.Receive(buf[:min(rest, int64(len(buf)))], fastWait)
		if n > 0 && !c.write(buf[:n]) {
			return false
		}
		rest -= int64(n)
		if err != nil && rest > 0 && (!timedOut(err) || c.gone(ctx)) {
			return false
		}
	}
	return true
}

// gone reports whether the client or the gateway has ended the connection.
func (c *fastConn) gone(ctx context.Context) bool {
	raw := relay.Socket(c.conn)
	return ctx.Err() != nil || raw == nil || hungUp(raw)
}

// appendRequest appends the request for the session's server.
func (c *fastConn) appendRequest(b []byte, t target) []byte {
	q := &c.request
	b = append(b, q.Method...)
	b = append(b, ' ')
	b = append(b, t.path...)
	b = append(b, q.Query...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = appendField(b, "Host", q.Host)
	for _, f := range q.Fields {
		if !fromGateway(f.Name) {
			b = appendField(b, f.Name, f.Value)
		}
	}
	b = appendField(b, "X-Forwarded-For", c.remote)
	b = appendForwarded(b, q.Host, c.secure != nil, t)
	return append(b, q.Body...)
}

// appendResponse appends the header of a response for the client of a host.
func appendResponse(b []byte, r *fastpath.Response, host string, t target) []byte {
	b = append(b, r.Line...)
	b = append(b, "\r\n"...)
	for _, f := range r.Fields {
		if f, ok := rewritten(f, host, t); ok {
			b = appendField(b, f.Name, f.Value)
		}
	}
	return append(b, "\r\n"...)
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}
