package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/reattach"
)

// keepHeader is, in a request between gateways, the offer to keep the client's
// WebSocket, and in the answer 101 how the session wants it kept.
const keepHeader = reservedPrefix + "Keep"

const keepOffered = "1"

var errOtherProtocol = errors.New("the session's next server agrees to another protocol than its last one")

func isWebSocket(h http.Header) bool { return strings.EqualFold(h.Get("Upgrade"), "websocket") }

// localKeepPolicy is how the upgrade is kept that the trip's session on this node is
// asked for; nil for one that is not. Another node's gateway has to offer it.
func (t *request) localKeepPolicy(h http.Header) *holdfast.KeepSockets {
	if !isWebSocket(h) || t.route.Node != "" || t.forwarded && !t.keepOffered {
		return nil
	}
	return t.route.Keep
}

// plainFrames has the server offered no extension (RFC 6455, 9): the state of one
// would go with the server.
func plainFrames(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	req.Header.Del("Sec-WebSocket-Extensions")
	return req
}

// keeping is how a switched connection is to be kept; nil: it is not. It has to
// be asked before the answer's reserved headers are dropped.
func (t *request) keepPolicy(req *http.Request, s *switched) *holdfast.KeepSockets {
	k := t.localKeepPolicy(req.Header)
	if t.route.Node != "" && isWebSocket(req.Header) {
		k = keepFromHeader(s.resp.Header)
	}
	if k == nil || s.resp.Header.Get("Sec-WebSocket-Extensions") != "" {
		return nil
	}
	return k
}

// setKeepHeader has another gateway know how the session's sockets are kept.
func setKeepHeader(h http.Header, k holdfast.KeepSockets) error {
	b, err := json.Marshal(k)
	if err == nil {
		h.Set(keepHeader, base64.StdEncoding.EncodeToString(b))
	}
	return err
}

// keepFromHeader is what another gateway said; nil where that was nothing of use.
func keepFromHeader(h http.Header) *holdfast.KeepSockets {
	b, err := base64.StdEncoding.DecodeString(h.Get(keepHeader))
	if err != nil || len(b) == 0 {
		return nil
	}
	var k holdfast.KeepSockets
	if json.Unmarshal(b, &k) != nil || k.Time <= 0 || k.Buffer < 1 || len(k.Tell) > holdfast.MaxTell {
		return nil
	}
	return &k
}

// runUpgraded serves upgraded connections until ctx is done.
func (g *Gateway) runUpgraded(ctx context.Context, started func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, end := make(chan struct{}), make(chan error, 1)
	go func() { end <- g.reattach.Run(ctx, func() { close(up) }) }()
	select {
	case <-up:
	case err := <-end:
		return err
	}
	err := g.relay.Run(ctx, started)
	cancel()
	return errors.Join(err, <-end)
}

// server is the session's end of a switched connection.
func (t *request) server(s *switched) reattach.Server {
	return reattach.Server{Conn: s.conn, Ahead: s.ahead, Left: t.route.Left, Far: t.route.Node != "", Release: t.takeRelease()}
}

// take gives what releases the trip's session to the caller.
func (t *request) takeRelease() func() {
	release := t.release
	t.release = nil
	return release
}

// kept is a client's connection whose upgrade is kept.
type keptSocket struct {
	gateway  *Gateway
	target   target
	req      *http.Request // as it goes to a session's server
	protocol string        // that the first server chose
	policy   holdfast.KeepSockets

	mu   sync.Mutex
	last holdfast.Route // of the present server
}

// addKept has a switched connection kept.
func (g *Gateway) addKept(req *http.Request, t *request, s *switched, policy holdfast.KeepSockets, client net.Conn, early []byte, done func()) error {
	k := &keptSocket{
		gateway: g, target: t.target, policy: policy, last: t.route,
		req: req.Clone(context.Background()), protocol: s.resp.Header.Get("Sec-WebSocket-Protocol"),
	}
	server := t.server(s)
	err := g.reattach.Add(reattach.Spec{
		Client: client, Early: early, Server: server, Policy: policy, PeerForward: t.forwarded,
		Next: k.next,
		Outcome: func(o reattach.Outcome, took time.Duration) {
			g.metrics.handover(o, took)
			g.log.Debug("a kept socket lost its server", "session", t.key, "outcome", o, "took", took)
		},
		Done: done,
	})
	if err != nil {
		server.Release()
	}
	return err
}

// next asks the session's next server for the upgrade.
func (k *keptSocket) next(ctx context.Context) (reattach.Server, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gateway.sessions.Refused(k.target.key, k.last)
	t := &request{
		target: k.target, gateway: k.gateway, reattaching: true,
		waiting: ctx, unwatch: func() {}, patience: k.policy.Time,
	}
	defer t.done()
	resp, err := k.gateway.RoundTrip(k.req.Clone(context.WithValue(ctx, requestKey{}, t)))
	var agreed *switched
	switch {
	case err == nil:
		resp.Body.Close()
		return reattach.Server{}, fmt.Errorf("the session's next server answers %s", resp.Status)
	case !errors.As(err, &agreed):
		return reattach.Server{}, err
	}
	h := agreed.resp.Header
	if h.Get("Sec-WebSocket-Protocol") != k.protocol || h.Get("Sec-WebSocket-Extensions") != "" {
		agreed.conn.Close()
		return reattach.Server{}, errOtherProtocol
	}
	k.last = t.route
	return t.server(agreed), nil
}
