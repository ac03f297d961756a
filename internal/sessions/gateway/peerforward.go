package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
)

// Local gives the gateway access to the sessions of its own node, to serve the
// requests that other nodes forward. Any goroutine may call it.
type Local interface {
	// Hold returns where this epoch of the session is served on this node. The
	// session is not stopped for idleness until release is called (exactly once).
	// Hold does not block. Any error means that this epoch is not ready here.
	Hold(key holdfast.SessionKey, epoch holdfast.Epoch) (r holdfast.Route, release func(), err error)
}

// Forwarded reports whether another node's gateway forwards r, which then
// belongs to the handler of PeerForwardHandler.
func Forwarded(r *http.Request) bool { return r.Header.Get(epochHeader) != "" }

// PeerForwardHandler returns the handler for requests that the gateways of
// other nodes forward: those with the header X-Holdfast-Epoch. Serve it on a
// listener of the fleet only (mutual TLS, HTTP/1.1). A request without a client
// certificate is answered with 403. The server of that listener needs an
// IdleTimeout above 30 s, a ReadHeaderTimeout, a larger MaxHeaderBytes than the
// gateways, and no ReadTimeout or WriteTimeout.
//
// The handler serves a request with the epoch that the request names, or
// refuses it with 421 and X-Holdfast-Refused before any byte was sent to the
// session. It never forwards a request again and never parks one. It asks for
// the body (100 Continue) once it is connected to the session's server. It
// sends nothing to that server before the first byte of the body has arrived,
// because until then the other gateway may send the request to another node.
// The other gateway has already handled tokens, origins, paths and cookies.
//
// The handler refuses requests before Run has started and when Run ends.
// Requests in progress then end as those of clients do.
func (g *Gateway) PeerForwardHandler(local Local) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.servePeerForward(local, w, r) })
}

func (g *Gateway) servePeerForward(local Local, w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		http.Error(w, "for other nodes only", http.StatusForbidden)
		return
	}
	to, epoch, err := forwardedFor(r)
	if err != nil {
		g.metrics.peerForwardRefusals.WithLabelValues(refusedMalformed).Inc()
		unread(w, r)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !closing.Closed(g.up) || g.stopping.Load() || !g.handlers.enter() {
		g.refuse(w, r, refusedStopping)
		return
	}
	defer g.handlers.leave()
	route, release, err := local.Hold(to.key, epoch)
	if err != nil {
		g.log.Debug("forwarded request refused", "session", to.key, "epoch", epoch, "err", err)
		g.refuse(w, r, refusedHold)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.cut, cancel)()
	t := &request{target: to, gateway: g, forwarded: true, route: route, release: release, keepOffered: r.Header.Get(keepHeader) == keepOffered, raw: r.Header.Get(rawHeader) != ""}
	defer t.done()
	if t.route, err = to.atPort(route); err != nil {
		g.log.Debug("forwarded request refused", "session", to.key, "epoch", epoch, "err", err)
		g.refuse(w, r, refusedPort)
		return
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // as in ServeHTTP
	g.serveRequest(&answer{ResponseWriter: w, gateway: g}, r.WithContext(ctx), t)
}

// forwardedFor returns the session, port and epoch that a forwarded request names.
// It is strict: each header occurs once, spelled as forward spells it.
func forwardedFor(r *http.Request) (target, holdfast.Epoch, error) {
	keys, epochs := r.Header[sessionHeader], r.Header[epochHeader]
	if len(keys) != 1 || len(epochs) != 1 {
		return target{}, 0, errors.New("a forwarded request names one session and one epoch")
	}
	t, err := parseForwardedTarget(keys[0])
	if err != nil {
		return target{}, 0, err
	}
	epoch, err := strconv.ParseInt(epochs[0], 10, 64)
	if err != nil || epoch <= 0 || strconv.FormatInt(epoch, 10) != epochs[0] {
		return target{}, 0, errors.New("the epoch is not a number over 0")
	}
	if r.Method == http.MethodConnect || !strings.HasPrefix(r.URL.EscapedPath(), "/") {
		return target{}, 0, errors.New("a forwarded request has a path")
	}
	return t, holdfast.Epoch(epoch), nil
}

// refuse reports that nothing was sent to the session. If the request has a
// body, the connection ends, so the body need not be read.
func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, why string) {
	g.metrics.peerForwardRefusals.WithLabelValues(why).Inc()
	unread(w, r)
	g.LastAnswer(w) // the next try must reach the successor of this gateway
	h := w.Header()
	h.Set(refusedHeader, why)
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusMisdirectedRequest)
}

// rewriteForwarded keeps the header as the first node's gateway made it.
func rewriteForwarded(h http.Header) {
	dropReserved(h)
	h.Del("Expect") // set by forward
}

// peerForwardFailed answers a request that the session did not answer.
func (g *Gateway) peerForwardFailed(w http.ResponseWriter, out *http.Request, t *request, err error) {
	g.log.Debug("forwarded request not served", "session", t.key, "epoch", t.route.Epoch, "err", err)
	why, status := failedBroke, http.StatusBadGateway
	switch {
	case is[*refusedError](err) && closing.Closed(t.route.Left):
		g.refuse(w, out, refusedLeft)
		return
	case is[*refusedError](err):
		g.refuse(w, out, refusedServer)
		return
	case t.body != nil && t.body.failed():
		why = failedClient
	case is[*brokenError](err) && closing.AwaitLeft(out.Context(), t.route.Left):
		why = failedLeft
	case timedOut(err):
		why, status = failedTime, http.StatusGatewayTimeout
	}
	unread(w, out)
	w.Header().Set(failedHeader, why)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	fmt.Fprintln(w, "the session did not answer")
}
