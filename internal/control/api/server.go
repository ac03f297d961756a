package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast"
)

// Options say which callers a listener accepts. The zero value is read-only and
// accepts only loopback names.
type Options struct {
	// Admin is for a listener that authenticates its callers itself, the
	// root-only unix socket: every route, no token.
	Admin bool
	// Peer is for a listener that only nodes of the fleet can connect to. It
	// returns the node that sent a request. The routes that nodes pass on to
	// each other are open, without a token. A request of node "" is refused.
	Peer func(*http.Request) holdfast.NodeID
	// Tokens, if not nil, open the routes of their scope to a request with one
	// of them as bearer token. Without a token only the probes answer.
	Tokens *Tokens
	// Logins, if not nil, stand for the token with which a browser logged in.
	// They count with Tokens only.
	Logins *Logins
	// Forward returns the transport of requests to another node, over HTTP/1.1.
	// It may return the same transport for many requests. The error wraps
	// holdfast.ErrNotFound if the node is not up. nil: requests are not passed
	// on.
	Forward func(node holdfast.NodeID) (http.RoundTripper, error)
	// Hosts are the names, beside loopback, that the Host header may have
	// if no token is configured.
	Hosts []string
	// Metrics answers /metrics; nil: not found.
	Metrics http.Handler
	// Log gets a line with the attribute audit=true for every request that
	// may change something, also for a refused one; nil: no lines.
	Log *slog.Logger
}

// Bounds of the resources that callers can use.
const (
	maxBody    = 64 << 10
	bodyLimit  = 10 * time.Second // to send a body
	maxStreams = 128              // open logs, execs and event streams
	retryAfter = "2"              // seconds, with 503

	// maxForwards limits the open forwarded connections; each takes about 200 KiB.
	maxForwards = 512
)

type server struct {
	Options
	parts   Parts
	cross   *http.CrossOriginProtection
	audit   *audit
	table   []route
	streams chan struct{} // a token for each open stream

	forwards chan struct{} // a token for each open forwarded connection
}

// New returns the handler for one listener.
func New(p Parts, o Options) http.Handler { return newServer(p, o).handler() }

// NewMetrics returns the handler for a process without an agent: /healthz, and
// Options.Metrics at /metrics with the access rules of an agent.
func NewMetrics(o Options) http.Handler {
	s := bareServer(o)
	s.table = slices.DeleteFunc(s.ownRoutes(), func(r route) bool { return r.id != "healthz" && r.id != "metrics" })
	return s.handler()
}

func newServer(p Parts, o Options) *server {
	s := bareServer(o)
	s.parts = p
	s.table = append(p.routes(), s.ownRoutes()...)
	return s
}

// bareServer returns a server without routes.
func bareServer(o Options) *server {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &server{Options: o, cross: http.NewCrossOriginProtection(), audit: newAudit(o.Log), streams: make(chan struct{}, maxStreams), forwards: make(chan struct{}, maxForwards)}
}

// handler answers the table's routes by their methods, and all other requests
// with an Error.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	allowed := map[string][]string{}
	for _, rt := range s.table {
		if s.Peer != nil && rt.at == here {
			continue // nodes do not ask that of each other
		}
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, rt) })
		allowed[rt.path] = append(allowed[rt.path], rt.method)
	}
	for path, methods := range allowed {
		allow := strings.Join(methods, ", ")
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { s.badMethod(w, r, allow) })
	}
	mux.HandleFunc("/", s.noRoute)
	return mux
}

// serve answers one request of a known route.
func (s *server) serve(w http.ResponseWriter, r *http.Request, rt route) {
	h := w.Header()
	// The logs of a session are untrusted: a browser must never run them.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	c, err := s.check(r, rt.access)
	if rt.access == forAdmin {
		a := &act{route: rt.id, caller: c, begin: time.Now()}
		r = r.WithContext(context.WithValue(r.Context(), actKey{}, a))
		a.r = r
		defer func() { s.audit.write(a, s.Peer != nil, err) }()
	}
	if err == nil {
		err = s.checkOrigin(r)
	}
	if err == nil {
		err = errCut // if the handler panics
		err = s.handle(w, r, rt, c)
		if err != nil && !is[sent](err) && rt.body != "" {
			linger(w, r)
		}
	}
	if err != nil && !is[sent](err) {
		refuse(w, r, err)
	}
}

// errCut is the result of a request if its handler broke off the answer.
var errCut = errors.New("the answer was cut off")

// checkOrigin refuses a request that another site's page made a browser send.
func (s *server) checkOrigin(r *http.Request) error {
	if err := s.cross.Check(r); err != nil {
		return &Error{Code: CodeCrossOrigin, Message: "the request comes from another site's page"}
	}
	return nil
}

func (s *server) handle(w http.ResponseWriter, r *http.Request, rt route, c Caller) error {
	if err := checkQuery(r, rt.query); err != nil {
		return err
	}
	rc := http.NewResponseController(w)
	if rt.limit == 0 {
		_ = rc.SetWriteDeadline(time.Time{})
		if rt.paced {
			w, r = paced(w, r)
		}
		return s.answer(w, r, rt, c)
	}
	ctx, cancel := context.WithTimeout(r.Context(), rt.limit)
	defer cancel()
	// Without a deadline a caller that does not read would block the handler.
	deadline(rc.SetWriteDeadline, rt.limit+bodyLimit)
	return s.answer(w, r.WithContext(ctx), rt, c)
}

// deadline sets a connection's deadline. It ignores the error of a writer without
// deadlines, as in tests.
func deadline(set func(time.Time) error, d time.Duration) { _ = set(time.Now().Add(d)) }

func (s *server) badMethod(w http.ResponseWriter, r *http.Request, allow string) {
	_, err := s.check(r, forReader)
	if err == nil {
		w.Header().Set("Allow", allow)
		err = &Error{Code: CodeBadMethod, Message: "method " + r.Method + " is not allowed for " + r.URL.Path, Advice: "use " + allow}
	}
	refuse(w, r, err)
}

func (s *server) noRoute(w http.ResponseWriter, r *http.Request) {
	_, err := s.check(r, forReader)
	if err == nil {
		advice := "/v1/openapi.json lists all routes"
		if !slices.ContainsFunc(s.table, func(r route) bool { return r.id == "openapi" }) {
			advice = "this process has /healthz and /metrics only"
		}
		err = &Error{Code: CodeNotFound, Message: "there is nothing at " + r.URL.Path, Advice: advice}
	}
	refuse(w, r, err)
}

// readBody reads a whole body, once.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	rc := http.NewResponseController(w)
	deadline(rc.SetReadDeadline, bodyLimit)
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	switch {
	case is[*http.MaxBytesError](err):
		return nil, err
	case err != nil:
		return nil, badRequest("reading the body: %v", err)
	}
	_ = rc.SetReadDeadline(time.Time{})
	return b, nil
}

// decode reads a JSON body into v. No body leaves v as it is.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	b, err := readBody(w, r)
	if err != nil {
		return err
	}
	text := string(bytes.Trim(b, " \t\r\n")) // JSON's white space (RFC 8259, 2)
	if text == "" {
		return nil
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != mediaJSON {
		return &Error{Code: CodeBadMedia, Message: "the body is not declared as JSON", Advice: "send Content-Type: " + mediaJSON}
	}
	if text == "null" {
		return badRequest("the body: null is not an object")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return badRequest("the body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return badRequest("the body: there is more after the JSON value")
	}
	return nil
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaJSON)
	_, _ = w.Write(append(b, '\n')) // the caller may have disconnected
	return nil
}

// refuse answers with err. The request's body may be unread.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	Unread(w, r)
	writeError(w, err)
}

// linger reads the rest of a body for a short time. A caller that still writes when its
// connection ends may lose the answer (RFC 9112, 9.6).
func linger(w http.ResponseWriter, r *http.Request) {
	deadline(http.NewResponseController(w).SetReadDeadline, bodyLimit/10)
	_, _ = io.Copy(io.Discard, r.Body) // the caller may have ended
}

// Unread bounds the time for the rest of a body that the handler has not read:
// net/http waits for it before it sends the answer. Handlers beside New's call
// it before they write anything.
func Unread(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	deadline(http.NewResponseController(w).SetReadDeadline, bodyLimit/10)
	w.Header().Set("Connection", "close") // the rest of the body would be read as the next request
}

// writeError answers with err. It must be the first thing written.
func writeError(w http.ResponseWriter, err error) {
	e := ErrorOf(err)
	h := w.Header()
	switch e.Code.Status() {
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfter)
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	}
	b, err := json.Marshal(ErrorBody{*e})
	if err != nil { // cannot fail: strings only
		b = nil
	}
	h.Set("Content-Type", mediaJSON)
	w.WriteHeader(e.Code.Status())
	_, _ = w.Write(append(b, '\n'))
}
