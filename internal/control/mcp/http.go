package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/control/api"
)

// Bounds of HTTP.
const (
	maxConns  = 64 // connections; each serves one request at a time
	bodyLimit = 10 * time.Second
	// longest is the longest limit of a tool, and a little time for its answer.
	longest = startLimit + 30*time.Second
)

// Path is where the protocol is served over HTTP.
const Path = "/mcp"

// Handler returns the protocol over HTTP, at Path. Each request needs a token of the
// API; one for reading gets the tools that read.
func (s *Server) Handler(tokens *api.Tokens) http.Handler {
	// Without state nothing is kept for a caller between its requests.
	inner := sdk.NewStreamableHTTPHandler(func(r *http.Request) *sdk.Server { return serverIn(r.Context()) },
		&sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true, MaxRequestBodyBytes: maxMessage, PropagateRequestCancellation: true})
	cross := http.NewCrossOriginProtection()
	mux := http.NewServeMux()
	mux.HandleFunc(Path, func(w http.ResponseWriter, r *http.Request) {
		if err := check(r, cross); err != nil {
			refuse(w, r, err)
			return
		}
		c, err := api.CallerOf(api.Options{Tokens: tokens}, r)
		if err != nil {
			refuse(w, r, err)
			return
		}
		if err := readBody(w, r); err != nil {
			refuse(w, r, err)
			return
		}
		to := s.serverFor(access{admin: c.Admin, write: s.o.AllowWrite, via: Program + ", " + c.Name})
		to.AddReceivingMiddleware(guard(r.Context()))
		inner.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), serverKey{}, to)))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, &api.Error{Code: api.CodeNotFound, Message: "there is nothing here", Advice: "the protocol is at " + Path})
	})
	return mux
}

// readBody reads a request's body within its time limit, and gives the answer its own.
func readBody(w http.ResponseWriter, r *http.Request) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyLimit)) // a writer in a test has no deadlines
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return err
	}
	if err != nil {
		return &api.Error{Code: api.CodeBadRequest, Message: "the body did not arrive"}
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Now().Add(longest))
	return nil
}

type serverKey struct{}

func serverIn(ctx context.Context) *sdk.Server {
	to, _ := ctx.Value(serverKey{}).(*sdk.Server)
	return to
}

// check refuses what a web page makes a browser send: a page of another site, or one
// whose name resolves to this machine (DNS rebinding).
func check(r *http.Request, cross *http.CrossOriginProtection) error {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if !loopback(host) {
		return &api.Error{Code: api.CodeBadHost, Message: "the Host header does not name this machine", Advice: "use 127.0.0.1 or localhost in the address"}
	}
	if cross.Check(r) != nil {
		return &api.Error{Code: api.CodeCrossOrigin, Message: "the request comes from another site's page"}
	}
	return nil
}

func refuse(w http.ResponseWriter, r *http.Request, err error) {
	api.Unread(w, r)
	e := api.ErrorOf(err)
	w.Header().Set("Content-Type", "application/json")
	if e.Code == api.CodeUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(e.Code.Status())
	_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: *e}) // the caller may have disconnected
}

// ErrAddress means that Listen cannot use the address.
var ErrAddress = errors.New("not a loopback address")

// Listen opens a loopback address for ServeListener: the tokens are sent in clear text.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, holdfast.WithHint(fmt.Errorf("%q is %w: %w", address, ErrAddress, err), "use 127.0.0.1:PORT")
	}
	if !loopback(host) {
		return nil, holdfast.WithHint(fmt.Errorf("%q is %w", address, ErrAddress), "use 127.0.0.1:PORT; a proxy with TLS on this host can pass requests on")
	}
	var l net.ListenConfig
	return l.Listen(ctx, "tcp", address)
}

// ServeListener serves Handler until ctx is done, and closes l.
func (s *Server) ServeListener(ctx context.Context, l net.Listener, tokens *api.Tokens, log *slog.Logger) error {
	return api.ServeUpTo(ctx, maxConns, l, s.Handler(tokens), log)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
