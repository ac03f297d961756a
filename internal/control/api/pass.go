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

// PassedHeader marks a request that another node has passed on. It is answered
// here, or not at all.
const PassedHeader = "X-Holdfast-Passed"

// place says where a route is answered.
type place int

const (
	here       place = iota // by whichever node is asked
	atItsNode               // by the node that the path names
	atItsOwner              // by the node that owns the session
)

// answer answers a request here, or has another node do it.
func (s *server) answer(w http.ResponseWriter, r *http.Request, rt route, c caller) error {
	node, err := s.whereabouts(r, rt)
	if err != nil {
		return err
	}
	if node == "" && (rt.at != atItsOwner || !s.passes(r)) {
		return rt.handle(s, w, r)
	}
	// Kept, because it may be sent on after it was read here.
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	if node == "" {
		r.Body = io.NopCloser(bytes.NewReader(body))
		err := rt.handle(s, w, r)
		var moved *holdfast.ElsewhereError
		var told sent
		if !errors.As(err, &moved) || errors.As(err, &told) || moved.Owner.Node == s.node {
			return err
		}
		node = moved.Owner.Node // it went there a moment ago
	}
	if rt.limit == 0 {
		closed, err := s.open()
		if err != nil {
			return err
		}
		defer closed()
	}
	return s.pass(w, r, body, node, c)
}

// passes reports whether a request may be passed on.
func (s *server) passes(r *http.Request) bool {
	return s.forward != nil && r.Header.Get(PassedHeader) == ""
}

// whereabouts is the other node that is to answer, "" for this one.
func (s *server) whereabouts(r *http.Request, rt route) (holdfast.NodeID, error) {
	switch rt.at {
	case atItsNode:
		node := holdfast.NodeID(r.PathValue("node"))
		if node == s.node {
			return "", nil
		}
		if !s.passes(r) {
			return "", &Error{Code: CodeNotFound, Message: fmt.Sprintf("this is node %s, and it does not reach node %q", s.node, bounded(string(node))),
				Advice: "ask that node itself"}
		}
		return node, nil
	case atItsOwner:
		key, err := keyOf(r)
		if err != nil || !s.passes(r) {
			return "", err
		}
		// Whatever is wrong here is the handler's to tell.
		if one, err := s.b.Session(r.Context(), key); err == nil && one.Node != s.node && one.State != holdfast.IsSuspended {
			return one.Node, nil
		}
	}
	return "", nil
}

// pass has a node answer in our place.
func (s *server) pass(w http.ResponseWriter, r *http.Request, body []byte, to holdfast.NodeID, c caller) error {
	note(r.Context(), "passed_to", to)
	trip, err := s.forward(to)
	if err != nil {
		err = fmt.Errorf("node %s: %w", bounded(string(to)), err)
		if errors.Is(err, holdfast.ErrNotFound) && holdfast.HintOf(err) == "" {
			err = holdfast.WithHint(err, "`holdfast node ls` shows the nodes that are up")
		}
		return err
	}
	r.Body, r.ContentLength = http.NoBody, int64(len(body))
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	var failed error
	proxy := &httputil.ReverseProxy{
		Transport:     trip,
		FlushInterval: -1, // at once: lines and logs are read as they come
		ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Rewrite:       func(p *httputil.ProxyRequest) { rewrite(p, c) },
		ModifyResponse: func(resp *http.Response) error {
			for name := range w.Header() {
				resp.Header.Del(name) // set here already
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

// rewrite makes the request one that a node sends. What a browser or a program
// proved itself with stays here.
func rewrite(p *httputil.ProxyRequest, c caller) {
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "node", "node"
	for name := range p.Out.Header {
		if name == "Authorization" || name == "Cookie" || name == "Origin" || name == "Referer" ||
			strings.HasPrefix(name, "Sec-") || strings.HasPrefix(name, "X-Holdfast-") || strings.HasPrefix(name, "X-Forwarded-") {
			p.Out.Header.Del(name)
		}
	}
	p.Out.Header.Set(PassedHeader, "1")
	p.Out.Header.Set(CallerHeader, bounded(c.who))
}

func unanswered(node holdfast.NodeID, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch code := codeOf(err); code {
	case CodeTimeout, CodeCanceled:
		return fmt.Errorf("node %s: %w", node, err)
	}
	return &Error{Code: CodeNodeDown, Message: fmt.Sprintf("node %s does not answer: %v", node, err),
		Advice: "if it is gone, its sessions come up elsewhere once its lease has run out; `holdfast node ls` shows the nodes that are up"}
}
