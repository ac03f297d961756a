package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
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
	Reason string `json:"reason"` // one of reasons, or unauthorized or forbidden
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
	Log    string `json:"log,omitempty"` // the container's last lines
	Title  string `json:"-"`
	retry  bool   // another try may succeed soon
	label  string // label of the metric if it differs from Reason; also one of reasons
}

// retryAfter is in seconds.
const retryAfter = "2"

// reasons are all values of the label reason of the error metric.
var reasons = []string{
	"no_route", "bad_host", "bad_key", "origin", "body_too_large", "not_found", "stopped", "elsewhere", "boot", "busy", "parked_too_long",
	"draining", "stopping", "store", "engine", "refused", "timeout", "left", "upstream", "client_gone",
	"token_missing", "token_invalid", "token_expired", "token_scope",
}

// explain returns the answer for err.
func explain(t target, err error) problem {
	p := problem{Status: http.StatusServiceUnavailable, retry: true, Error: err.Error(), Hint: holdfast.HintOf(err)}
	set := func(status int, reason, title string) {
		p.Status, p.Reason, p.Title = status, reason, title
		p.retry = status == http.StatusServiceUnavailable
	}
	var (
		key     *holdfast.KeyError
		body    *http.MaxBytesError
		boot    *holdfast.BootError
		other   *holdfast.ElsewhereError
		refused *refusedError
		timeout net.Error
		broken  *brokenError
		denied  *deniedError
	)
	switch {
	case errors.As(err, &denied) && denied.status == http.StatusForbidden:
		set(denied.status, "forbidden", "Another session's token")
		p.Error, p.label = "the connect token is for other sessions", denied.reason
	case errors.As(err, &denied):
		// Only a client with a valid token learns what is wrong with a token.
		set(http.StatusUnauthorized, "unauthorized", "A connect token is needed")
		p.Error, p.label = "a valid connect token is needed", denied.reason
		p.Hint = "open the original link again, or send the header Authorization: Bearer TOKEN"
	case errors.Is(err, errNoRoute):
		set(http.StatusNotFound, "no_route", "Nothing here")
		p.Hint = "sessions are at /s/<key>/, or at <key>.<domain> if a domain is configured"
	case errors.Is(err, errHost):
		set(http.StatusMisdirectedRequest, "bad_host", "Another host's name")
		p.Hint = "add the name to gateway.hosts if clients may use it"
	case errors.As(err, &key):
		set(http.StatusBadRequest, "bad_key", "No session key")
	case errors.Is(err, errOrigin):
		set(http.StatusForbidden, "origin", "Another origin")
		p.Hint = "add the page's origin to gateway.origins if it may open connections to sessions"
	case errors.As(err, &body):
		set(http.StatusRequestEntityTooLarge, "body_too_large", "Too large")
		p.Error = fmt.Sprintf("the request's body is larger than %d bytes", body.Limit)
	case errors.Is(err, errParkingFull), errors.Is(err, holdfast.ErrBusy):
		set(http.StatusServiceUnavailable, "busy", "Too many requests are waiting")
	case errors.Is(err, errParkedTooLong):
		set(http.StatusServiceUnavailable, "parked_too_long", "Not ready yet")
	case errors.Is(err, errStopping):
		set(http.StatusServiceUnavailable, "stopping", "Stopping")
	case errors.Is(err, errHangup), errors.Is(err, context.Canceled):
		set(statusClientGone, "client_gone", "Client gone")
	case errors.As(err, &other):
		// Only a node that does not forward gets here.
		set(http.StatusServiceUnavailable, "elsewhere", "Another host has the session")
		p.Hint = "set fleet.listen on nodes that share a store, so that they reach each other's sessions"
	case errors.As(err, &boot):
		set(http.StatusBadGateway, "boot", "The session did not start")
		p.Log = boot.Log
	case errors.Is(err, holdfast.ErrStopped):
		set(http.StatusServiceUnavailable, "stopped", "Stopped")
	case errors.Is(err, holdfast.ErrNotFound):
		set(http.StatusNotFound, "not_found", "No such session")
	case errors.Is(err, holdfast.ErrDraining):
		set(http.StatusServiceUnavailable, "draining", "This host is draining")
	case errors.Is(err, holdfast.ErrStore):
		set(http.StatusServiceUnavailable, "store", "Ownership is unknown")
	case errors.Is(err, holdfast.ErrEngine):
		set(http.StatusServiceUnavailable, "engine", "The container engine does not answer")
	case errors.As(err, &timeout) && timeout.Timeout():
		set(http.StatusGatewayTimeout, "timeout", "The session does not answer")
	case errors.As(err, &refused):
		set(http.StatusBadGateway, "refused", "The session refuses connections")
		if refused.byServer {
			p.Hint = "the container runs, but nothing listens on its port"
		}
	case errors.As(err, &broken) && broken.unsure:
		set(http.StatusServiceUnavailable, "left", "The session has just left")
		p.Hint = "the request may have been carried out; it was not sent again"
	default:
		set(http.StatusBadGateway, "upstream", "The session broke off")
	}
	if p.label == "" {
		p.label = p.Reason
	}
	if t.key != "" && p.Reason != "boot" {
		p.Error = fmt.Sprintf("session %s: %s", t.key, p.Error)
	}
	return p
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
	if p.retry {
		h.Set("Retry-After", retryAfter)
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
		_ = page.Execute(w, p)
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

var page = template.Must(template.New("problem").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Status}} {{.Title}}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 4rem auto; padding: 0 1rem; color-scheme: light dark }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8888; border-radius: 4px; white-space: pre-wrap }
</style>
<h1>{{.Title}}</h1>
<p>{{.Error}}</p>
{{with .Hint}}<p>{{.}}</p>{{end}}
{{with .Log}}<p>The container's last lines:</p><pre>{{.}}</pre>{{end}}
</html>
`))
