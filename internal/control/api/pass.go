package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"holdfast"
)

// PassedHeader marks a request that another node has passed on. This node answers
// it or refuses it, and never passes it on again.
const PassedHeader = "X-Holdfast-Passed"

// place says which node answers a route.
type place int

const (
	here       place = iota // the node that gets the request
	atItsNode               // the node that the path names
	atItsOwner              // the node that owns the session
)

// answer answers a request on this node, or passes it on to another node.
func (s *server) answer(w http.ResponseWriter, r *http.Request, rt route, c Caller) error {
	node, err := s.nodeFor(r, rt)
	if err != nil {
		return err
	}
	if node != "" && rt.limit == 0 || rt.stream {
		closed, err := s.open(rt)
		if err != nil {
			return err
		}
		defer closed()
	}
	if node == "" && (rt.at != atItsOwner || !s.passes(r)) {
		return rt.handle(w, r)
	}
	if rt.body != "" { // it is passed on as it arrives, so only once
		if node == "" {
			return rt.handle(w, r)
		}
		return s.pass(w, r, node, c)
	}
	// The body is kept: it may be passed on after the handler has read it.
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	if node == "" {
		r.Body = io.NopCloser(bytes.NewReader(body))
		err := rt.handle(w, r)
		moved, ok := errors.AsType[*holdfast.ElsewhereError](err)
		if !ok || is[sent](err) || moved.Owner.Node == s.parts.Version.Node {
			return err
		}
		node = moved.Owner.Node // the session has just moved there
	}
	r.Body, r.ContentLength = http.NoBody, int64(len(body))
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return s.pass(w, r, node, c)
}

// passes reports whether a request may be passed on to another node.
func (s *server) passes(r *http.Request) bool {
	return s.Forward != nil && r.Header.Get(PassedHeader) == ""
}

// nodeFor returns the node that must answer, "" for this node.
func (s *server) nodeFor(r *http.Request, rt route) (holdfast.NodeID, error) {
	switch rt.at {
	case atItsNode:
		node := holdfast.NodeID(r.PathValue("node"))
		if node == s.parts.Version.Node {
			return "", nil
		}
		if !s.passes(r) {
			return "", &Error{Code: CodeNotFound, Message: fmt.Sprintf("this is node %s, and it does not reach node %q", s.parts.Version.Node, bounded(string(node))),
				Advice: "send the request to that node"}
		}
		return node, nil
	case atItsOwner:
		key, err := keyOf(r)
		if err != nil || !s.passes(r) {
			return "", err
		}
		// The handler reports any error.
		if one, err := s.parts.Sessions.Session(r.Context(), key); err == nil && one.Node != s.parts.Version.Node && one.State != holdfast.IsSuspended {
			return one.Node, nil
		}
	}
	return "", nil
}

// pass passes a request on to a node and copies its answer.
func (s *server) pass(w http.ResponseWriter, r *http.Request, to holdfast.NodeID, c Caller) error {
	note(r.Context(), "passed_to", to)
	transport, err := s.Forward(to)
	if err != nil {
		err = fmt.Errorf("node %s: %w", bounded(string(to)), err)
		if errors.Is(err, holdfast.ErrNotFound) && holdfast.HintOf(err) == "" {
			err = holdfast.WithHint(err, "`holdfast node ls` shows the nodes that are up")
		}
		return err
	}
	var failed error
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // at once: the caller follows lines and logs
		ErrorLog:      slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		Rewrite:       func(p *httputil.ProxyRequest) { rewrite(p, c) },
		ModifyResponse: func(resp *http.Response) error {
			for name := range w.Header() {
				resp.Header.Del(name) // set already
			}
			if resp.StatusCode >= http.StatusBadRequest {
				failed = sent{fmt.Errorf("node %s answered with status %d", to, resp.StatusCode)}
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = unanswered(to, err) },
	}
	proxy.ServeHTTP(w, r)
	return failed
}

// rewrite makes the request one of this node. It removes the caller's
// credentials.
func rewrite(p *httputil.ProxyRequest, c Caller) {
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "node", "node"
	for name := range p.Out.Header {
		if name == "Authorization" || name == "Cookie" || name == "Origin" || name == "Referer" ||
			strings.HasPrefix(name, "Sec-") || strings.HasPrefix(name, "X-Holdfast-") || strings.HasPrefix(name, "X-Forwarded-") {
			p.Out.Header.Del(name)
		}
	}
	p.Out.Header.Set(PassedHeader, "1")
	p.Out.Header.Set(CallerHeader, bounded(c.Name))
	if via := p.In.Header.Get(ViaHeader); via != "" {
		p.Out.Header.Set(ViaHeader, bounded(via))
	}
}

func unanswered(node holdfast.NodeID, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	switch code := codeOf(err); code {
	case CodeTimeout, CodeCanceled:
		return fmt.Errorf("node %s: %w", node, err)
	}
	return &Error{Code: CodeNodeDown, Message: fmt.Sprintf("node %s does not answer: %v", node, err),
		Advice: "if the node is down, its sessions start on other nodes once its lease has expired; `holdfast node ls` shows the nodes that are up"}
}
