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
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/reattach"
)

// keepHeader offers, in a request between gateways, to keep the client's
// WebSocket while the session moves. In the answer 101 it carries the keep
// policy of the session.
const keepHeader = reservedPrefix + "Keep"

const keepOffered = "1"

var errOtherProtocol = errors.New("the session's next server chose another protocol than its last one")

func isWebSocket(h http.Header) bool { return strings.EqualFold(h.Get("Upgrade"), "websocket") }

// localKeepPolicy returns the keep policy if this node serves the session and
// the WebSocket is to be kept, else nil. For a request from another node, that
// node's gateway must have offered it.
func (t *request) localKeepPolicy(h http.Header) *holdfast.KeepSockets {
	if !isWebSocket(h) || t.route.Node != "" || t.forwarded && !t.keepOffered {
		return nil
	}
	return t.route.Keep
}

// plainFrames removes the offer of WebSocket extensions (RFC 6455, 9): the
// state of an extension would be lost with the server.
func plainFrames(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	req.Header.Del("Sec-WebSocket-Extensions")
	return req
}

// keepPolicy returns how a switched connection is kept, nil if it is not. Call
// it before the reserved headers of the answer are dropped.
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

// setKeepHeader tells another gateway the keep policy of the session.
func setKeepHeader(h http.Header, k holdfast.KeepSockets) {
	b, _ := json.Marshal(k) // cannot fail for its fields
	h.Set(keepHeader, base64.StdEncoding.EncodeToString(b))
}

// keepFromHeader returns the keep policy that another gateway sent, nil if
// there is no valid one.
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

// server returns the session's side of a switched connection.
func (t *request) server(s *switched) reattach.Server {
	return reattach.Server{Conn: s.conn, Ahead: s.ahead, Left: t.route.Left, Far: t.route.Node != "", Release: t.takeRelease(), Activity: byData(t.route, true)}
}

// byData makes only the data of a connection count as a use of a session that
// sleeps without data. It returns nil for other sessions.
func byData(r holdfast.Route, kept bool) holdfast.Activity {
	if r.Activity != nil {
		r.Activity.ByData(kept)
	}
	return r.Activity
}

// reasonOf returns why data of a connection with that request header wakes its session.
func reasonOf(h http.Header) holdfast.WakeReason {
	if isWebSocket(h) {
		return holdfast.WokenByWebSocket
	}
	return holdfast.WokenByStream
}

// takeRelease hands the release function of the session over to the caller.
func (t *request) takeRelease() func() {
	release := t.release
	t.release = nil
	return release
}

// keptSocket is a client connection that is kept while its session moves, or is suspended.
type keptSocket struct {
	gateway   *Gateway
	req       *http.Request // as it is sent to a session's server
	protocol  string        // chosen by the first server
	policy    holdfast.KeepSockets
	forwarded bool // the client is another gateway

	mu   sync.Mutex // guards the route of link, which is that of the current server, and wait
	link link
	wait *resumeWait // the last one; nil: there was none
}

// addKept hands a switched connection to g.reattach.
func (g *Gateway) addKept(req *http.Request, t *request, s *switched, policy holdfast.KeepSockets, client net.Conn, early []byte, done func()) error {
	k := &keptSocket{
		gateway: g, link: link{t.target, t.client, t.route}, policy: policy, forwarded: t.forwarded,
		req: req.Clone(context.Background()), protocol: s.resp.Header.Get("Sec-WebSocket-Protocol"),
	}
	spec := k.spec(client, k.server(t, s), done)
	spec.Early = early
	return g.addKeptSpec(spec)
}

// spec returns how the socket is served.
func (k *keptSocket) spec(client net.Conn, server reattach.Server, done func()) reattach.Spec {
	g, key := k.gateway, k.link.target.key
	spec := reattach.Spec{
		Client: client, Server: server, Policy: k.policy, PeerForward: k.forwarded,
		Next: k.next, Export: k.export,
		Outcome: func(o reattach.Outcome, took time.Duration) {
			g.metrics.handover(o, took)
			g.log.Debug("a kept socket lost its server", "session", key, "outcome", o, "took", took)
		},
		Done: done,
	}
	if k.policy.Asleep {
		spec.Awake = k.awake
	}
	return spec
}

// addKeptSpec adds a socket to g.reattach. If it fails, it releases the session. The caller
// calls Done.
func (g *Gateway) addKeptSpec(spec reattach.Spec) error {
	err := g.reattach.Add(spec)
	if err != nil && spec.Server.Release != nil {
		spec.Server.Release()
	}
	return err
}

// export leaves the socket to the next gateway.
func (k *keptSocket) export(e reattach.Exported) {
	k.mu.Lock()
	x := k.link.export(kindKept)
	k.mu.Unlock()
	x.Protocol, x.Policy, x.Request, x.Kept = k.protocol, &k.policy, exportRequest(k.req), &e.State
	if e.Server < 0 {
		k.gateway.exports.add(x, e.Client)
	} else {
		k.gateway.exports.add(x, e.Client, e.Server)
	}
}

// next sends the upgrade request to the session's next server.
func (k *keptSocket) next(ctx context.Context, hurry <-chan struct{}) (reattach.Server, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	done, err := k.mayConnect(ctx, hurry)
	if err != nil {
		return reattach.Server{}, err
	}
	defer done()
	if closing.Closed(hurry) { // data waits
		ctx = holdfast.WithWakeReason(ctx, holdfast.WokenByWebSocket)
	}
	k.gateway.sessions.Refused(k.link.target.key, k.link.route)
	t := &request{
		target: k.link.target, gateway: k.gateway, reattaching: true,
		waiting: ctx, unwatch: func() {}, patience: k.policy.Time,
	}
	defer t.done()
	resp, err := k.gateway.roundTrip(k.req.Clone(ctx), t)
	if err == nil {
		resp.Body.Close()
		return reattach.Server{}, fmt.Errorf("the session's next server answers %s", resp.Status)
	}
	agreed, ok := errors.AsType[*switched](err)
	if !ok {
		return reattach.Server{}, err
	}
	h := agreed.resp.Header
	if h.Get("Sec-WebSocket-Protocol") != k.protocol || h.Get("Sec-WebSocket-Extensions") != "" {
		agreed.conn.Close()
		return reattach.Server{}, errOtherProtocol
	}
	k.link.route = t.route
	return k.server(t, agreed), nil
}

// server returns the session's side of a switched connection. Another node keeps the connection
// while the session is suspended there.
func (k *keptSocket) server(t *request, s *switched) reattach.Server {
	server := t.server(s)
	if node := t.route.Node; node != "" && k.policy.Asleep {
		server.Renew = func(ctx context.Context) (<-chan struct{}, bool) {
			k.mu.Lock()
			epoch := k.link.route.Epoch
			k.mu.Unlock()
			r, err := k.gateway.resumeWaits.await(ctx, k.link.target.key, epoch)
			if err != nil || r.Epoch == 0 || r.Node != node {
				return nil, false
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			k.link.route = r
			return r.Left, true
		}
	}
	return server
}

// errElsewhere ends the connection of another gateway, which connects to the session's next
// server itself.
var errElsewhere = errors.New("the session is not served here")

// awake joins the wait of the session's sockets, while it is suspended.
func (k *keptSocket) awake() (<-chan struct{}, func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, key := k.gateway.resumeWaits, k.link.target.key
	w := s.join(key, k.link.route.Epoch)
	k.wait = w
	return w.done, func() { s.leave(key, w) }
}

// mayConnect waits for the turn of a socket whose session was suspended. The socket of another
// gateway may connect only to a server of this node, or if data waits for the server.
func (k *keptSocket) mayConnect(ctx context.Context, hurry <-chan struct{}) (done func(), err error) {
	switch {
	case k.wait == nil || closing.Closed(hurry):
		return func() {}, nil
	case k.forwarded && (k.wait.route.Epoch == 0 || k.wait.route.Node != ""):
		return nil, errElsewhere
	}
	return k.gateway.resumeWaits.takeTurn(ctx, hurry)
}
