package gateway

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
)

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := begunBy(r)
	if begun == nil && !g.enter(r) {
		g.fail(w, r, target{}, errStopping)
		return
	}
	defer g.handlers.leave()
	a := g.newAnswer(w, r)
	defer a.end(r)
	req := &request{gateway: g, patience: g.cfg.ParkTime, client: clientOf(r.RemoteAddr)}
	if begun != nil {
		req.begun, req.slot, req.route, req.release = &begun.server, &begun.slot, begun.route, begun.release
		req.received = begun.got
		defer req.dropBegun() // route may answer without serveRequest
		defer req.done()
	} else {
		slot, err := g.slots.wait(r.Context(), req.client)
		if err != nil {
			g.fail(a, r, target{}, err)
			return
		}
		req.slot = &slot
	}
	defer req.slot.free()
	g.route(a, r, req)
}

// enter counts a request. It returns false if the gateway has ended, or is about to end and would have to
// close the connection that the request asks for.
func (g *Gateway) enter(r *http.Request) bool {
	return (!g.stopping.Load() || upgradeOf(r.Header) == "") && g.handlers.enter()
}

// route answers a client's request, or sends it to its session.
func (g *Gateway) route(w *answer, r *http.Request, req *request) {
	if !g.cfg.knownHost(r.Host) {
		g.fail(w, r, target{}, errHost)
		return
	}
	t, err := g.cfg.clientTarget(r.Host, r.URL.EscapedPath())
	if g.tokens != nil && (err == nil || errors.Is(err, errSlash) || is[*portError](err)) {
		answered, denied := g.admitToken(w, r, t)
		if answered {
			return
		}
		if denied != nil {
			g.fail(w, r, t, denied)
			return
		}
	}
	if errors.Is(err, errSlash) {
		to := t.prefix + "/"
		if r.URL.RawQuery != "" {
			to += "?" + r.URL.RawQuery
		}
		unread(w, r)
		http.Redirect(w, r, to, http.StatusPermanentRedirect)
		return
	}
	if err == nil {
		err = g.admit(w.ResponseWriter, r) // http.MaxBytesReader needs that of net/http
	}
	if err != nil {
		g.fail(w, r, t, err)
		return
	}
	waiting, unwatch := hangupContext(r)
	req.target, req.bootsNothing = t, g.cfg.bootsNothing(r)
	req.waiting, req.unwatch = waiting, sync.OnceFunc(unwatch)
	defer req.done()
	defer req.unwatch()
	// A server may answer while the body still arrives. Without full duplex,
	// HTTP/1 would end the body at the first byte of the answer.
	if r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).EnableFullDuplex() // supported by every server of the gateway
	}
	g.serveRequest(w, r, req)
}

// admit makes the checks that need no session. It turns an upgrade that cannot be
// served into an ordinary request.
func (g *Gateway) admit(w http.ResponseWriter, r *http.Request) error {
	if r.ProtoMajor != 1 || r.ContentLength != 0 || strings.EqualFold(r.Header.Get("Upgrade"), "h2c") {
		// HTTP/2 has no Upgrade, and any other may be ignored (RFC 9110, 7.8): the
		// request is served as an ordinary one.
		r.Header.Del("Upgrade")
	}
	kind := "request"
	if r.Header.Get("Upgrade") != "" {
		kind = "upgrade"
	}
	// A page of another origin cannot read the answer, but its request takes effect.
	if (kind == "upgrade" || !safe(r.Method)) && !allowedOrigin(g.cfg.Origins, r) {
		return errOrigin
	}
	g.metrics.connects.WithLabelValues(kind).Inc()
	if limit := g.cfg.MaxBodyBytes; limit > 0 && r.ContentLength != 0 {
		if r.ContentLength > limit {
			return &http.MaxBytesError{Limit: limit}
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
	}
	return nil
}

// safe reports whether a method changes nothing (RFC 9110, 9.2.1).
func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions || method == http.MethodTrace
}

// idempotent reports whether a method has the same effect when it is repeated
// (RFC 9110, 9.2.2).
func idempotent(method string) bool {
	return safe(method) || method == http.MethodPut || method == http.MethodDelete
}

// rewrite turns a client's header into the one for the session's server.
func rewrite(h http.Header, r *http.Request, t *request) {
	dropGatewayHeaders(h)
	if client, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		h["X-Forwarded-For"] = []string{client}
	}
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	h["X-Forwarded-Host"], h["X-Forwarded-Proto"] = []string{r.Host}, []string{proto}
	if t.prefix != "" {
		h["X-Forwarded-Prefix"] = []string{t.prefix}
	}
}

// trailerOf returns the trailers of a request, which are filled in at the end of its
// body (see trailed). It is nil if the header announces none that may pass.
func trailerOf(r *http.Request) http.Header {
	dropTrailers(r.Trailer)
	if len(r.Trailer) == 0 {
		return nil
	}
	return r.Trailer
}

// rewriteResponse makes a server that does not know its prefix work behind it,
// and confines its cookies to the prefix. For a forwarded request the first
// node's gateway does this. It removes the reserved headers, and fields that no trailer
// may have, in every case.
func (t *request) rewriteResponse(resp *http.Response) {
	h := resp.Header
	dropReserved(h)
	dropTrailers(resp.Trailer)
	if resp.ContentLength < 0 { // only then may trailers follow
		resp.Body = trailed{resp.Body, &resp.Trailer}
	}
	if t.forwarded {
		return
	}
	if loc := h.Get("Location"); loc != "" {
		h.Set("Location", t.location(loc, resp.Request.Host))
	}
	for i, c := range h["Set-Cookie"] {
		h["Set-Cookie"][i] = t.cookie(c)
	}
}

// location adds the prefix to a path on this host that lacks it.
func (t target) location(loc, host string) string {
	origin, path := "", loc
	for _, scheme := range []string{"http://", "https://", "//"} {
		if rest, ok := strings.CutPrefix(loc, scheme+host); ok && (rest == "" || rest[0] == '/') {
			origin, path = scheme+host, rest
		}
	}
	outside := origin == "" && (!strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//"))
	if outside || t.prefix == "" {
		return loc // relative, or on another host
	}
	return origin + t.prefixed(path)
}

func (t target) prefixed(path string) string {
	if path == t.prefix || strings.HasPrefix(path, t.prefix+"/") {
		return path
	}
	return t.prefix + path
}

// cookie adds the prefix to the path of a cookie and removes its domain: with a
// domain, a session could set cookies for all other sessions.
func (t target) cookie(c string) string {
	parts := strings.Split(c, ";")
	kept := parts[:1]
	for _, p := range parts[1:] {
		name, value, _ := strings.Cut(p, "=")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "domain":
			continue
		case "path":
			if path := strings.TrimSpace(value); strings.HasPrefix(path, "/") {
				p = " Path=" + t.prefixed(path)
			}
		}
		kept = append(kept, p)
	}
	return strings.Join(kept, ";")
}

// bufferPool lends the proxy its copy buffers.
type bufferPool struct{ pool sync.Pool }

// buffer is a copy buffer.
type buffer = *[32 << 10]byte

func (b *bufferPool) Get() buffer {
	if p, ok := b.pool.Get().(buffer); ok {
		return p
	}
	return new([32 << 10]byte)
}

func (b *bufferPool) Put(p buffer) { b.pool.Put(p) }
