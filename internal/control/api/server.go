package api

import (
	"bytes"
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

// Options says who is let in on a listener. The zero value is the careful one:
// read-only, and only under a loopback name.
type Options struct {
	// Admin is for a listener that vouches for its callers, the root-only
	// unix socket: every route, no token.
	Admin bool
	// Peer is for a listener that only nodes of the fleet can connect to,
	// and says which one sent a request: the routes that nodes pass on to
	// each other, no token. "" is refused.
	Peer func(*http.Request) holdfast.NodeID
	// Tokens, where not nil, open the routes of their scope to who sends one
	// as a bearer token, and close all but the probes to who does not.
	Tokens *Tokens
	// Logins, where not nil, stand for the token that their browser showed.
	// They count with Tokens only.
	Logins *Logins
	// Forward returns what carries requests to another node, over HTTP/1.1.
	// It may be the same one for many requests. The error wraps
	// holdfast.ErrNotFound where no such node is up. nil: requests are not
	// passed on.
	Forward func(node holdfast.NodeID) (http.RoundTripper, error)
	// Hosts are the names, beside loopback, that the Host header may carry
	// where there is no token.
	Hosts []string
	// Metrics answers /metrics; nil: not found.
	Metrics http.Handler
	// Log gets a line with the attribute audit=true for every request that
	// may change something, also for one that is refused; nil: none.
	Log *slog.Logger
}

// Bounds of what a caller can make the agent hold.
const (
	maxBody    = 64 << 10
	bodyLimit  = 10 * time.Second // to send a body
	maxStreams = 128              // logs and execs open at once
	retryAfter = "2"              // seconds, with 503
)

type server struct {
	b         Backend
	node      holdfast.NodeID // this one
	guard     guard
	cross     *http.CrossOriginProtection
	audit     audit
	forward   func(holdfast.NodeID) (http.RoundTripper, error)
	table     []route
	doc       []byte
	prom      http.Handler
	log       *slog.Logger
	streams   chan struct{} // a token for each open stream
	pingEvery time.Duration
}

// New makes the handler for one listener.
func New(b Backend, o Options) http.Handler { return newServer(b, o).handler() }

// NewMetrics makes the handler for a process that has only figures to show:
// /healthz and Options.Metrics at /metrics, for whom an agent's are.
func NewMetrics(o Options) http.Handler {
	own := slices.DeleteFunc(routes(), func(r route) bool { return r.id != "healthz" && r.id != "metrics" })
	return bareServer(own, o).handler()
}

func newServer(b Backend, o Options) *server {
	s := bareServer(routes(), o)
	s.b, s.node, s.forward = b, b.Version().Node, o.Forward
	s.doc = document(s.table)
	return s
}

// bareServer answers routes that need no backend.
func bareServer(table []route, o Options) *server {
	s := &server{guard: newGuard(o), cross: http.NewCrossOriginProtection(), table: table, prom: o.Metrics, log: o.Log,
		streams: make(chan struct{}, maxStreams), pingEvery: pingEvery}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.audit.log = s.log
	return s
}

// handler answers every route of the table by its method, everything else with
// an error of ours.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	allowed := map[string][]string{}
	for _, rt := range s.table {
		if s.guard.peer != nil && rt.at == here {
			continue // no node has a reason to ask that of another
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
	// What a session logs is nobody's to trust: never let a browser run it.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	c, err := s.guard.check(r, rt.access)
	if rt.access == forAdmin {
		a := &act{route: rt.id, caller: c, begin: time.Now()}
		r = r.WithContext(context.WithValue(r.Context(), actKey{}, a))
		a.r = r
		defer func() { s.audit.write(a, s.guard.peer != nil, err) }()
	}
	if err == nil {
		err = s.checkOrigin(r)
	}
	if err == nil {
		err = errCut // where the handler does not return
		err = s.handle(w, r, rt, c)
	}
	var told sent
	if err != nil && !errors.As(err, &told) {
		refuse(w, r, err)
	}
}

// errCut is the result of a request whose answer broke in the middle.
var errCut = errors.New("the answer was cut off")

// checkOrigin refuses what a browser was made to send by another site's page.
func (s *server) checkOrigin(r *http.Request) error {
	if err := s.cross.Check(r); err != nil {
		return &Error{Code: CodeCrossOrigin, Message: "the request comes from another site's page"}
	}
	return nil
}

func (s *server) handle(w http.ResponseWriter, r *http.Request, rt route, c caller) error {
	if err := checkQuery(r, rt.query); err != nil {
		return err
	}
	rc := http.NewResponseController(w)
	if rt.limit == 0 {
		_ = rc.SetWriteDeadline(time.Time{})
		return s.answer(w, r, rt, c)
	}
	ctx, cancel := context.WithTimeout(r.Context(), rt.limit)
	defer cancel()
	// Without a deadline a caller who does not read would keep the handler.
	deadline(rc.SetWriteDeadline, rt.limit+bodyLimit)
	return s.answer(w, r.WithContext(ctx), rt, c)
}

// deadline sets a connection's deadline. A writer that has none, as in tests,
// does without.
func deadline(set func(time.Time) error, d time.Duration) { _ = set(time.Now().Add(d)) }

func (s *server) badMethod(w http.ResponseWriter, r *http.Request, allow string) {
	if _, err := s.guard.check(r, forReader); err != nil {
		refuse(w, r, err)
		return
	}
	w.Header().Set("Allow", allow)
	refuse(w, r, &Error{Code: CodeBadMethod, Message: r.Method + " is not for " + r.URL.Path, Advice: "use " + allow})
}

func (s *server) noRoute(w http.ResponseWriter, r *http.Request) {
	if _, err := s.guard.check(r, forReader); err != nil {
		refuse(w, r, err)
		return
	}
	advice := "/v1/openapi.json lists all routes"
	if s.doc == nil {
		advice = "this process has /healthz and /metrics only"
	}
	refuse(w, r, &Error{Code: CodeNotFound, Message: "there is nothing at " + r.URL.Path, Advice: advice})
}

// readBody reads a whole body, once.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	rc := http.NewResponseController(w)
	deadline(rc.SetReadDeadline, bodyLimit)
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var size *http.MaxBytesError
		if errors.As(err, &size) {
			return nil, err
		}
		return nil, &Error{Code: CodeBadRequest, Message: "reading the body: " + err.Error()}
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
	if len(bytes.TrimSpace(b)) == 0 {
		return nil
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != mediaJSON {
		return &Error{Code: CodeBadMedia, Message: "the body is not declared as JSON", Advice: "send Content-Type: " + mediaJSON}
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return &Error{Code: CodeBadRequest, Message: "the body: " + strings.TrimPrefix(err.Error(), "json: ")}
	}
	if _, err := d.Token(); err != io.EOF {
		return &Error{Code: CodeBadRequest, Message: "the body: there is more after the JSON value"}
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
	_, _ = w.Write(append(b, '\n')) // a caller that is gone needs no answer
	return nil
}

// refuse answers with err, to a request whose body may not have been read.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	Unread(w, r)
	writeError(w, err)
}

// Unread bounds what a request's body may still cost that is answered without
// having read it, for handlers beside New's: net/http waits for the rest before
// the answer goes out. It must be called before anything is written.
func Unread(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	// A writer that has no deadline, as in tests, does without.
	deadline(http.NewResponseController(w).SetReadDeadline, bodyLimit/10)
	w.Header().Set("Connection", "close") // what comes after the deadline would be taken for the next request
}

// writeError answers with err. It must be the first thing written.
func writeError(w http.ResponseWriter, err error) {
	e := toError(err)
	h := w.Header()
	switch e.Code.Status() {
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfter)
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	}
	b, err := json.Marshal(ErrorBody{*e})
	if err != nil { // strings only: cannot be
		b = nil
	}
	h.Set("Content-Type", mediaJSON)
	w.WriteHeader(e.Code.Status())
	_, _ = w.Write(append(b, '\n'))
}
