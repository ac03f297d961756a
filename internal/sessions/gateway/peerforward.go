package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"holdfast"
)

// Local is what the gateway needs to know of the sessions of its own node, to
// serve what others forward. Any goroutine may call it.
type Local interface {
	// Hold says where this epoch of the session is served on this node, and
	// keeps it from being stopped for idleness until release is called
	// (exactly once). It does not block. An error, whatever it is, says that
	// this epoch is not ready here.
	Hold(key holdfast.SessionKey, epoch holdfast.Epoch) (r holdfast.Route, release func(), err error)
}

// Forwarded reports whether a request is one that another node's gateway
// forwards, for Hop.
func Forwarded(r *http.Request) bool { return r.Header.Get(epochHeader) != "" }

// PeerForwardHandler returns the handler for requests that the gateways of other nodes forward:
// those with the header X-Holdfast-Epoch. It is for a listener of the fleet's
// own (mutual TLS, HTTP/1.1 only); what comes without a client's certificate is
// answered with 403. The server of that listener needs an IdleTimeout of more
// than 30 s, a ReadHeaderTimeout, more MaxHeaderBytes than the gateways have, and
// no ReadTimeout or WriteTimeout.
//
// A request is served by the epoch that it names, or refused with 421 and
// X-Holdfast-Refused before a byte went to the session; it is never forwarded
// again and waits for nothing. Its body is asked for (100 Continue) when there
// is a connection to the session's server, and not a byte goes there before the
// body's first has come: until it has sent that, the other gateway may turn to
// somebody else. Tokens, origins, paths and cookies were that one's work.
//
// Forwarded requests are refused before Run is ready for them, and when it ends;
// those under way then end as a client's do.
func (g *Gateway) PeerForwardHandler(local Local) http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport:      peerForwardTransport{g},
		Rewrite:        rewriteForwarded,
		ModifyResponse: rewriteResponse,
		FlushInterval:  -1,
		BufferPool:     g.buffers,
		ErrorLog:       slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		ErrorHandler:   g.peerForwardFailed,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.servePeerForward(local, proxy, w, r)
	})
}

func (g *Gateway) servePeerForward(local Local, proxy http.Handler, w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		http.Error(w, "for other nodes only", http.StatusForbidden)
		return
	}
	key, epoch, err := forwardedFor(r)
	if err != nil {
		g.metrics.peerForwardRefusals.WithLabelValues(refusedMalformed).Inc()
		unread(w, r)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !g.up.Load() || !g.handlers.enter() {
		g.refuse(w, r, refusedStopping)
		return
	}
	defer g.handlers.leave()
	route, release, err := local.Hold(key, epoch)
	if err != nil {
		g.log.Debug("forwarded request refused", "session", key, "epoch", epoch, "err", err)
		g.refuse(w, r, refusedHold)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.cut, cancel)()
	t := &request{target: target{key: key}, gateway: g, forwarded: true, route: route, release: release, keepOffered: r.Header.Get(keepHeader) == keepOffered}
	defer t.done()
	_ = http.NewResponseController(w).EnableFullDuplex() // as in ServeHTTP
	proxy.ServeHTTP(&answer{w, g}, r.WithContext(context.WithValue(ctx, requestKey{}, t)))
}

// forwardedFor reads whom a forwarded request is for. What it returns is exact:
// each header once, and spelled as forward does.
func forwardedFor(r *http.Request) (holdfast.SessionKey, holdfast.Epoch, error) {
	keys, epochs := r.Header[sessionHeader], r.Header[epochHeader]
	if len(keys) != 1 || len(epochs) != 1 {
		return "", 0, errors.New("a forwarded request names one session and one epoch")
	}
	key, err := holdfast.ParseSessionKey(keys[0])
	if err != nil {
		return "", 0, err
	}
	epoch, err := strconv.ParseInt(epochs[0], 10, 64)
	if err != nil || epoch <= 0 || strconv.FormatInt(epoch, 10) != epochs[0] {
		return "", 0, errors.New("the epoch is not a number over 0")
	}
	if r.Method == http.MethodConnect || !strings.HasPrefix(r.URL.EscapedPath(), "/") {
		return "", 0, errors.New("a forwarded request has a path")
	}
	return key, holdfast.Epoch(epoch), nil
}

// refuse says that nothing was sent to the session. Where the request has a body
// the connection ends, so that nobody has to read it.
func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, why string) {
	g.metrics.peerForwardRefusals.WithLabelValues(why).Inc()
	unread(w, r)
	g.LastAnswer(w) // the next try is to reach the gateway that follows
	h := w.Header()
	h.Set(refusedHeader, why)
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusMisdirectedRequest)
}

// rewriteForwarded leaves the request as the first node's gateway made it.
func rewriteForwarded(p *httputil.ProxyRequest) {
	u := url.URL{Path: p.In.URL.Path, RawPath: p.In.URL.RawPath, RawQuery: p.In.URL.RawQuery}
	p.Out.URL = &u
	p.Out.Host = p.In.Host
	p.Out.Trailer = p.In.Trailer
	dropReserved(p.Out.Header)
	p.Out.Header.Del("Expect") // was forward's
	for name, values := range p.In.Header {
		if strings.HasPrefix(name, forwardedPrefix) {
			p.Out.Header[name] = values
		}
	}
}

// peerForwardTransport tries once: what comes next is for the first node to decide.
type peerForwardTransport struct{ g *Gateway }

func (h peerForwardTransport) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	t := requestOf(req.Context())
	t.begin(req)
	err = t.attempt(func() (err error) {
		resp, err = h.g.send(req, t)
		return err
	})
	return resp, err
}

// peerForwardFailed answers what the session did not.
func (g *Gateway) peerForwardFailed(w http.ResponseWriter, out *http.Request, err error) {
	t := requestOf(out.Context())
	var (
		agreed  *switched
		refused *refusedError
		broken  *brokenError
		timeout net.Error
	)
	if errors.As(err, &agreed) {
		if err = g.upgrade(w, out, t, agreed); err == nil {
			return
		}
	}
	g.log.Debug("forwarded request not served", "session", t.key, "epoch", t.route.Epoch, "err", err)
	why, status := failedBroke, http.StatusBadGateway
	switch {
	case errors.As(err, &refused) && closed(t.route.Left):
		g.refuse(w, out, refusedLeft)
		return
	case errors.As(err, &refused):
		g.refuse(w, out, refusedServer)
		return
	case t.body != nil && t.body.failed():
		why = failedClient
	case errors.As(err, &broken) && t.leaves(out.Context()):
		why = failedLeft
	case errors.As(err, &timeout) && timeout.Timeout():
		why, status = failedTime, http.StatusGatewayTimeout
	}
	unread(w, out)
	w.Header().Set(failedHeader, why)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	fmt.Fprintln(w, "the session did not answer")
}
