package gateway

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"holdfast/internal/sessions/gateway/upstream"
)

// serveRequest sends a request to its session, and the answer to the client. It does what
// httputil.ReverseProxy does, without its copies of headers, and without a flush of each
// response's header.
func (g *Gateway) serveRequest(a *answer, r *http.Request, t *request) {
	if g.serveDirect(a, r, t) {
		return
	}
	defer t.dropBegun()
	out, err := outgoing(r, t)
	if err != nil {
		g.notServed(a, r, t, err)
		return
	}
	t.answer = a
	resp, err := g.roundTrip(out, t)
	if err != nil {
		g.notServed(a, out, t, err)
		return
	}
	defer resp.Body.Close()
	resp.Request = out
	dropHop(resp.Header)
	t.rewriteResponse(resp)
	err = respond(a, resp, g.buffers)
	if err != nil && r.Context().Value(http.ServerContextKey) != nil {
		panic(http.ErrAbortHandler) // nothing else tells the client that the body is incomplete
	}
}

// notServed answers a request that got no response. It serves an upgrade.
func (g *Gateway) notServed(a *answer, out *http.Request, t *request, err error) {
	if s, ok := errors.AsType[*switched](err); ok {
		if err = g.upgrade(a, out, t, s); err == nil {
			return
		}
	}
	if a.pace != nil && a.pace.slowBody() {
		err = errSlowBody
	}
	if t.forwarded {
		g.peerForwardFailed(a, out, t, err)
	} else {
		g.fail(a, out, t.target, err)
	}
}

// outgoing returns the request for the session's server.
func outgoing(r *http.Request, t *request) (*http.Request, error) {
	upgrade := upgradeOf(r.Header)
	if strings.ContainsFunc(upgrade, func(c rune) bool { return c < ' ' || c > '~' }) {
		return nil, fmt.Errorf("the client asks for the invalid protocol %q", upgrade)
	}
	out := *r
	out.Close = false
	out.Header = make(http.Header, len(r.Header)+5) // User-Agent, and those of rewrite
	maps.Copy(out.Header, r.Header)
	dropHop(out.Header)
	delete(out.Header, "Forwarded") // RFC 7239
	if httpguts.HeaderValuesContainsToken(r.Header["Te"], "trailers") {
		out.Header["Te"] = []string{"trailers"}
	}
	if upgrade != "" {
		out.Header["Connection"] = []string{"Upgrade"}
		out.Header["Upgrade"] = []string{upgrade}
	}
	out.Trailer = trailerOf(r)
	if t.forwarded {
		out.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery}
		rewriteForwarded(out.Header)
	} else {
		// As the client sent them, even if malformed.
		out.URL = &url.URL{RawPath: t.path, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery}
		out.URL.Path, _ = url.PathUnescape(t.path) // net/http has parsed it
		rewrite(out.Header, r, t)
	}
	if len(out.Header["User-Agent"]) == 0 {
		out.Header["User-Agent"] = []string{""} // net/http adds none then
	}
	if r.ContentLength == 0 {
		out.Body = nil
	}
	return &out, nil
}

// upgradeOf returns the protocol that the header asks for, or "".
func upgradeOf(h http.Header) string {
	if !httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade") {
		return ""
	}
	return h.Get("Upgrade")
}

// hopHeaders belong to one connection (RFC 9110, 7.6.1). Proxy-Connection is sent by old
// clients.
var hopHeaders = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// dropHop removes the headers that belong to one connection.
func dropHop(h http.Header) {
	for _, names := range h["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hopHeaders {
		delete(h, name)
	}
}

// respond writes a response. It flushes before it waits for the server, unless nothing of
// the response has to be flushed.
func respond(a *answer, resp *http.Response, buffers *bufferPool) error {
	h := a.Header()
	addAll(h, resp.Header, "")
	announced := len(resp.Trailer)
	if announced > 0 {
		h.Add("Trailer", strings.Join(slices.Sorted(maps.Keys(resp.Trailer)), ", "))
	}
	a.WriteHeader(resp.StatusCode)
	if resp.Body == http.NoBody {
		return nil
	}
	if err := copyBody(a, resp, buffers); err != nil {
		return err
	}
	if len(resp.Trailer) == 0 {
		return nil
	}
	// Without a flush, net/http would give a short body a length, and no trailers.
	_ = a.FlushError() // a client that has gone needs no trailers
	prefix := ""
	if len(resp.Trailer) != announced {
		prefix = http.TrailerPrefix
	}
	addAll(h, resp.Trailer, prefix)
	return nil
}

// addAll adds the values of from to h, under names with a prefix.
func addAll(h, from http.Header, prefix string) {
	for name, values := range from {
		if old := h[prefix+name]; len(old) > 0 {
			values = slices.Concat(old, values)
		}
		h[prefix+name] = values
	}
}

// copyBody copies a response's body to the client.
func copyBody(a *answer, resp *http.Response, buffers *bufferPool) error {
	ahead, _ := resp.Body.(upstream.Ahead)
	if from, ok := resp.Body.(trailed); ok {
		ahead, _ = from.ReadCloser.(upstream.Ahead)
	}
	buf := buffers.Get()
	defer buffers.Put(buf)
	for {
		if a.unflushed && (ahead == nil || !ahead.Ready()) {
			if err := a.FlushError(); err != nil {
				return err
			}
		}
		n, err := resp.Body.Read(buf[:])
		if n > 0 {
			if _, err := a.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// interim passes a response below 200 on.
func (a *answer) interim(status int, header http.Header) {
	h := a.Header()
	own := maps.Clone(h)
	addAll(h, header, "")
	a.WriteHeader(status)
	clear(h)
	maps.Copy(h, own)
}
