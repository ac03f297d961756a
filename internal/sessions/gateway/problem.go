package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"holdfast"
)

var (
	errOrigin  = errors.New("a page of another origin sent the request")
	errUnasked = errors.New("the session's server switched protocols without an upgrade request")
)

// problem is the answer to a request that the gateway answers itself.
type problem struct {
	Status int    `json:"status"`
	Reason string `json:"reason"` // of answerRules, or unauthorized or forbidden
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
	Log    string `json:"log,omitempty"`  // the container's last lines
	Port   int    `json:"port,omitempty"` // that the request names; 0 is the template's own
	Title  string `json:"-"`
	label  string // reason in the metric; for a denied request it is one of tokenReasons
}

// retryAfter is in seconds.
const retryAfter = "2"

// answerRule describes the answer to one kind of errors.
type answerRule struct {
	match  func(error) bool
	status int
	reason string
	title  string
	hint   string // replaces that of the error
}

// answerRules lists the answers. The first rule that matches counts: a boot error
// may wrap one of the errors below it. The last rule matches every error.
var answerRules = []answerRule{
	{wraps(errNoRoute), http.StatusNotFound, "no_route", "Nothing here", "sessions are at /s/<key>/, or at <key>.<domain> if a domain is configured"},
	{wraps(errHost), http.StatusMisdirectedRequest, "bad_host", "Another host's name", "add the name to gateway.hosts if clients may use it"},
	{is[*portError], http.StatusNotFound, "port", "Not a port of this session", "add the port to ports of the session's template"},
	{is[*holdfast.KeyError], http.StatusBadRequest, "bad_key", "No session key", ""},
	{wraps(errOrigin), http.StatusForbidden, "origin", "Another origin", "add the page's origin to gateway.origins if it may open connections to sessions"},
	{wraps(errCrossSite), http.StatusForbidden, "cross_site", "Another site", ""},
	{is[*bootsError], http.StatusTooManyRequests, "boots", "Too many sessions", "wait, or raise gateway.boots_per_client; behind a proxy all clients have its address"},
	{is[*http.MaxBytesError], http.StatusRequestEntityTooLarge, "body_too_large", "Too large", ""},
	{wraps(errSlowBody), http.StatusRequestTimeout, "slow_body", "Too slow", ""},
	{wraps(errClientSlots), http.StatusTooManyRequests, "client_busy", "Too many requests", "wait, or raise gateway.max_requests_per_client; behind a proxy all clients have its address"},
	{wraps(errSlots), http.StatusServiceUnavailable, "busy", "Too many requests are in progress", ""},
	{wraps(errParkingFull, holdfast.ErrBusy), http.StatusServiceUnavailable, "busy", "Too many requests are waiting", ""},
	{wraps(errParkedTooLong), http.StatusServiceUnavailable, "parked_too_long", "Not ready yet", ""},
	{wraps(errStopping), http.StatusServiceUnavailable, "stopping", "Stopping", ""},
	{wraps(errHangup, context.Canceled), statusClientGone, "client_gone", "Client gone", ""},
	// Only a node that does not forward gets an ElsewhereError.
	{is[*holdfast.ElsewhereError], http.StatusServiceUnavailable, "elsewhere", "Another host has the session", "set fleet.listen on nodes that share a store, so that they reach each other's sessions"},
	{is[*holdfast.BootError], http.StatusBadGateway, "boot", "The session did not start", ""},
	{wraps(holdfast.ErrStopped), http.StatusServiceUnavailable, "stopped", "Stopped", ""},
	{wraps(holdfast.ErrNotFound), http.StatusNotFound, "not_found", "No such session", ""},
	{wraps(holdfast.ErrDraining), http.StatusServiceUnavailable, "draining", "This host is draining", ""},
	{wraps(holdfast.ErrStore), http.StatusServiceUnavailable, "store", "Ownership is unknown", ""},
	{wraps(holdfast.ErrEngine), http.StatusServiceUnavailable, "engine", "The container engine does not answer", ""},
	{timedOut, http.StatusGatewayTimeout, "timeout", "The session does not answer", ""},
	{refusedByServer, http.StatusBadGateway, "refused", "The session refuses connections", "the container runs, but nothing listens on the port at the container's address; a server that listens on 127.0.0.1 only is not reachable"},
	{is[*refusedError], http.StatusBadGateway, "refused", "The session refuses connections", ""},
	{unsure, http.StatusServiceUnavailable, "left", "The session has just left", "the request may have been carried out; it was not sent again"},
	{func(error) bool { return true }, http.StatusBadGateway, "upstream", "The session broke off", ""},
}

// wraps returns a function that reports whether an error wraps one of the targets.
func wraps(targets ...error) func(error) bool {
	return func(err error) bool {
		return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
	}
}

func refusedByServer(err error) bool {
	refused, ok := errors.AsType[*refusedError](err)
	return ok && refused.byServer
}

func unsure(err error) bool {
	broken, ok := errors.AsType[*brokenError](err)
	return ok && broken.unsure
}

// reasons returns all values of the label reason of the error metric.
func reasons() []string {
	all := slices.Clone(tokenReasons)
	for _, r := range answerRules {
		all = append(all, r.reason)
	}
	return all
}

// explain returns the answer for err.
func explain(t target, err error) problem {
	p := problem{Error: err.Error(), Hint: holdfast.HintOf(err)}
	if denied, ok := errors.AsType[*deniedError](err); ok {
		p = denied.problem()
	} else {
		r := answerRules[slices.IndexFunc(answerRules, func(r answerRule) bool { return r.match(err) })]
		p.Status, p.Reason, p.Title, p.label = r.status, r.reason, r.title, r.reason
		p.Hint = cmp.Or(r.hint, p.Hint)
	}
	if body, ok := errors.AsType[*http.MaxBytesError](err); ok && p.Reason == "body_too_large" {
		p.Error = fmt.Sprintf("the request's body is larger than %d bytes", body.Limit)
	}
	if p.Reason == "boot" {
		boot, _ := errors.AsType[*holdfast.BootError](err)
		p.Log = boot.Log
	} else if t.key != "" {
		p.Error = fmt.Sprintf("session %s: %s", t.name(), p.Error)
	}
	p.Port = t.port
	return p
}

// problem returns the answer to a request without a valid token for its session.
// Only a client with a valid token learns what is wrong with a token.
func (d *deniedError) problem() problem {
	if d.reason == "token_scope" {
		return problem{
			Status: http.StatusForbidden, Reason: "forbidden", Title: "Another session's token", label: d.reason,
			Error: "the connect token is for other sessions or ports", Hint: holdfast.HintOf(d),
		}
	}
	return problem{
		Status: http.StatusUnauthorized, Reason: "unauthorized", Title: "A connect token is needed", label: d.reason,
		Error: "a valid connect token is needed", Hint: "open the original link again, or send the header Authorization: Bearer TOKEN",
	}
}

// statusClientGone is the status that nginx logs for a client that
// disconnected. It only appears in logs.
const statusClientGone = 499

// fail answers r with the problem for err, in the format that the client
// accepts: JSON, HTML or text.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, t target, err error) {
	p := explain(t, err)
	g.metrics.errors.WithLabelValues(p.label).Inc()
	level := g.log.Info
	if p.Status < 500 {
		level = g.log.Debug
	}
	level("request not served", "session", t.key, "status", p.Status, "reason", p.label, "err", err)

	unread(w, r)
	g.LastAnswer(w)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer") // a token may be in the URL
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer") // RFC 6750, 3
	}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		h.Set("Retry-After", retryAfter)
	}
	if many, ok := errors.AsType[*bootsError](err); ok {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(many.after.Seconds()))))
	}
	if p.Reason == "stopping" && r.ProtoMajor == 1 {
		h.Set("Connection", "close")
	}
	switch accept := r.Header.Get("Accept"); {
	case strings.Contains(accept, "application/json"):
		h.Set("Content-Type", "application/json")
		w.WriteHeader(p.Status)
		_ = json.NewEncoder(w).Encode(p)
	case strings.Contains(accept, "text/html"):
		h.Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(p.Status)
		p.writePage(w)
	default:
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(p.Status)
		fmt.Fprintf(w, "error: %s\n", p.Error)
		if p.Hint != "" {
			fmt.Fprintf(w, "hint: %s\n", p.Hint)
		}
		if p.Log != "" {
			fmt.Fprintf(w, "\nthe container's last lines:\n%s\n", p.Log)
		}
	}
}

// pageTop has the status, and the title twice.
const pageTop = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>%[1]d %[2]s</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 4rem auto; padding: 0 1rem; color-scheme: light dark }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8888; border-radius: 4px; white-space: pre-wrap }
</style>
<h1>%[2]s</h1>
`

// writePage writes the problem as a page. Each text passes EscapeString, which is enough
// because all of them are contents of elements.
func (p problem) writePage(w io.Writer) {
	fmt.Fprintf(w, pageTop+"<p>%[3]s</p>\n", p.Status, html.EscapeString(p.Title), html.EscapeString(p.Error))
	if p.Hint != "" {
		fmt.Fprintf(w, "<p>%s</p>\n", html.EscapeString(p.Hint))
	}
	if p.Log != "" {
		fmt.Fprintf(w, "<p>The container's last lines:</p><pre>%s</pre>\n", html.EscapeString(p.Log))
	}
	fmt.Fprintln(w, "</html>")
}
