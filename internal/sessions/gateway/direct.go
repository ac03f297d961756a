package gateway

import (
	"bytes"
	"net"
	"net/http"
	"net/textproto"
	"strings"

	"golang.org/x/net/http/httpguts"

	"holdfast/internal/sessions/gateway/fastpath"
)

// serveDirect serves a plain request of HTTP/2 whose session is ready, without net/http on the
// side of the server. It does for a request what the fast path does for a connection of HTTP/1.
// It returns false if roundTrip has to serve the request: what was sent is in t.begun then.
func (g *Gateway) serveDirect(a *answer, r *http.Request, t *request) bool {
	if t.forwarded || t.begun != nil || g.finishing.Load() || !plain(r, t.target) {
		return false
	}
	route, release, server, ok := g.readyServer(r.Context(), t.target)
	if !ok {
		return false
	}
	t.route, t.release = route, release
	buf := g.buffers.Get()
	defer g.buffers.Put(buf)
	var got []byte
	if server.Send(appendPlain(buf[:0], r, t.target)) == nil {
		n, _ := server.Receive(buf[:], fastWait) // roundTrip gets the error again
		got = buf[:n]
	} else if !server.Sent() {
		server.End(false)
		t.done()
		return false
	}
	var answer fastpath.Response
	if !answer.Parse(got) || answer.Length > g.cfg.MaxHeaderBytes || answer.Body != int64(len(got)-answer.Length) || answer.Chunked {
		t.begun, t.received = &server, bytes.Clone(got)
		return false
	}
	server.End(answer.Reuse) // all of the response is here
	if answer.Body > 0 {
		joinNext(r)
	}
	respondPlain(a, &answer, got[answer.Length:], r.Host, t.target)
	return true
}

// special are fields of a request that net/http, or the gateway, treats in a way of its own.
var special = []string{"Connection", "Content-Length", "Expect", "Forwarded", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// plain reports whether a request of HTTP/2 can be written as it is: a GET without a body, in
// which outgoing and net/http would change nothing but the fields of the gateway.
func plain(r *http.Request, t target) bool {
	if r.ProtoMajor != 2 || r.Method != http.MethodGet || r.ContentLength != 0 || len(r.Trailer) > 0 || len(r.Header["User-Agent"]) > 1 {
		return false
	}
	if !visible(t.path) || t.path[0] != '/' || !visible("?"+r.URL.RawQuery) || !visible(r.Host) || !httpguts.ValidHostHeader(r.Host) || strings.Contains(r.Host, "%") {
		return false
	}
	for _, name := range special {
		if _, has := r.Header[name]; has {
			return false
		}
	}
	for _, line := range r.Header["Cookie"] {
		if strings.Contains(line, loginCookie) {
			return false
		}
	}
	return true
}

// visible reports whether a text has at least one byte, and visible ASCII characters only.
func visible(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return text != ""
}

// appendPlain appends a plain request for the session's server.
func appendPlain(b []byte, r *http.Request, t target) []byte {
	b = append(b, "GET "...)
	b = append(b, t.path...)
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		b = append(b, '?')
		b = append(b, r.URL.RawQuery...)
	}
	b = append(b, " HTTP/1.1\r\n"...)
	b = appendField(b, "Host", r.Host)
	for name, values := range r.Header {
		if name == "Host" || fromGateway(name) {
			continue
		}
		for _, value := range values {
			b = appendField(b, name, value)
		}
	}
	if client, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		b = appendField(b, "X-Forwarded-For", client)
	}
	return appendForwarded(b, r.Host, r.TLS != nil, t)
}

// appendForwarded appends what tells a server about its client, and ends the header.
func appendForwarded(b []byte, host string, secure bool, t target) []byte {
	b = appendField(b, "X-Forwarded-Host", host)
	proto := "http"
	if secure {
		proto = "https"
	}
	b = appendField(b, "X-Forwarded-Proto", proto)
	if t.prefix != "" {
		b = appendField(b, "X-Forwarded-Prefix", t.prefix)
	}
	return append(b, "\r\n"...)
}

// respondPlain passes a whole response on.
func respondPlain(a *answer, resp *fastpath.Response, body []byte, host string, t target) {
	h := a.Header()
	for _, f := range resp.Fields {
		if f, ok := rewritten(f, host, t); ok {
			name := textproto.CanonicalMIMEHeaderKey(f.Name)
			h[name] = append(h[name], f.Value)
		}
	}
	a.WriteHeader(resp.Status)
	if len(body) > 0 {
		_, _ = a.Write(body) // a client that has gone needs no body
	}
}

// rewritten returns a field of a response for the client of a host, and false if the client does not
// get it.
func rewritten(f fastpath.Field, host string, t target) (fastpath.Field, bool) {
	switch {
	case begins(f.Name, reservedPrefix):
		return f, false
	case f.Kind == fastpath.Location:
		f.Value = t.location(f.Value, host)
	case f.Kind == fastpath.SetCookie:
		f.Value = t.cookie(f.Value)
	}
	return f, true
}
