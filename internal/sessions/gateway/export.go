package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"

	"holdfast"
	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/reattach"
	"holdfast/internal/sessions/gateway/relay"
)

// Kinds of exported connections. They are the values of the label kind of the metric.
const (
	kindKept  = "kept"  // a WebSocket that is kept, package reattach
	kindRelay = "relay" // another upgraded connection, package relay
	kindTCP   = "tcp"   // a connection to a TCP address
)

var exportKinds = []string{kindKept, kindRelay, kindTCP}

// exported is the state of a connection that one gateway leaves to the next one on the same
// host. The versions of the two may differ, so fields keep their meaning.
type exported struct {
	Kind    string              `json:"kind"`
	Key     holdfast.SessionKey `json:"key"` // that the client has named: a session or a group
	Port    int                 `json:"port,omitempty"`
	Prefix  string              `json:"prefix,omitempty"`
	Path    string              `json:"path,omitempty"`
	Client  netip.Addr          `json:"client"`
	Session holdfast.SessionKey `json:"session"` // whose server it has, or had
	Epoch   holdfast.Epoch      `json:"epoch"`

	WebSocket bool                `json:"websocket,omitempty"`
	Reason    holdfast.WakeReason `json:"reason,omitempty"`
	Relay     *relay.State        `json:"relay,omitempty"`

	Protocol string                `json:"protocol,omitempty"`
	Policy   *holdfast.KeepSockets `json:"policy,omitempty"`
	Request  *exportedRequest      `json:"request,omitempty"`
	Kept     *reattach.State       `json:"kept,omitempty"`
}

// exportedRequest is the upgrade request of a kept WebSocket.
type exportedRequest struct {
	Path     string      `json:"path"`
	RawPath  string      `json:"raw_path,omitempty"`
	RawQuery string      `json:"raw_query,omitempty"`
	Host     string      `json:"host"`
	Header   http.Header `json:"header"`
}

func exportRequest(r *http.Request) *exportedRequest {
	return &exportedRequest{r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.Host, r.Header}
}

func (e *exportedRequest) request() *http.Request {
	return &http.Request{
		Method: http.MethodGet, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		URL: &url.URL{Path: e.Path, RawPath: e.RawPath, RawQuery: e.RawQuery}, Host: e.Host, Header: e.Header,
	}
}

// link is a client's connection and what serves it.
type link struct {
	target target
	client netip.Addr // see clientOf
	route  holdfast.Route
}

func (l link) export(kind string) exported {
	t := l.target
	return exported{
		Kind: kind, Key: t.key, Port: t.port, Prefix: t.prefix, Path: t.path, Client: l.client, Session: l.route.Key, Epoch: l.route.Epoch,
	}
}

func (e exported) target() target {
	return target{key: e.Key, port: e.Port, prefix: e.Prefix, path: e.Path}
}

// exports collects exported connections.
type exports struct {
	log *slog.Logger

	mu    sync.Mutex
	conns []connfd.Conn
}

func (x *exports) add(e exported, fds ...int) {
	c := connfd.Conn{FDs: fds}
	var err error
	if c.State, err = json.Marshal(e); err != nil {
		x.log.Error("a connection cannot be passed on, and is closed", "session", e.Session, "err", err)
		c.Close()
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.conns = append(x.conns, c)
}

func (x *exports) take() []connfd.Conn {
	x.mu.Lock()
	defer x.mu.Unlock()
	conns := x.conns
	x.conns = nil
	return conns
}

// exportRelayed returns the Export function of a relayed connection, nil if the session's
// server is on another node: the connection to that node uses TLS.
func (g *Gateway) exportRelayed(l link, kind string, webSocket bool, reason holdfast.WakeReason) func(relay.Exported) {
	if l.route.Node != "" {
		return nil
	}
	return func(e relay.Exported) {
		x := l.export(kind)
		x.WebSocket, x.Reason, x.Relay = webSocket, reason, &e.State
		g.exports.add(x, e.Client, e.Upstream)
	}
}

// Export returns the connections that the next gateway on this host can continue, for its
// Import. These are the WebSockets, other upgraded connections and connections to TCP
// addresses that come over plain TCP. This gateway serves them no more and leaves them open.
// Those whose session is on another node are among them if they are kept. Call it once, while
// Run runs, after Finish.
func (g *Gateway) Export() []connfd.Conn {
	if !closing.Closed(g.up) {
		return nil
	}
	var all sync.WaitGroup
	all.Go(g.reattach.Export)
	all.Go(g.relay.Export)
	all.Go(g.streams.Export)
	all.Wait()
	return g.exports.take()
}

// Import serves the connections of an earlier gateway's Export. It waits until Run serves, and
// returns how many it serves. It takes all of them over, and closes those that it cannot serve.
// Any goroutine may call it.
func (g *Gateway) Import(ctx context.Context, conns []connfd.Conn) (served int) {
	select {
	case <-g.up:
	case <-ctx.Done():
	}
	var all sync.WaitGroup
	var closed atomic.Int32
	for _, c := range conns {
		all.Go(func() {
			if err := g.importConn(ctx, c); err != nil {
				closed.Add(1)
				g.log.Warn("a connection of the agent before this one is closed", "err", err)
			}
		})
	}
	all.Wait()
	return len(conns) - int(closed.Load())
}

// importConn serves one connection.
func (g *Gateway) importConn(ctx context.Context, c connfd.Conn) error {
	var e exported
	if err := json.Unmarshal(c.State, &e); err != nil {
		c.Close()
		return err
	}
	slot, err := g.slots.take(e.Client)
	if err != nil {
		c.Close()
		return err
	}
	defer slot.free() // unless it is given away
	n := len(c.FDs)
	switch {
	case e.Kind == kindKept && e.Kept != nil && e.Policy != nil && e.Request != nil && (n == 1 || n == 2):
		err = g.importKept(ctx, e, c.FDs, slot.giveAway())
	case (e.Kind == kindRelay || e.Kind == kindTCP) && e.Relay != nil && n == 2:
		err = g.importRelayed(ctx, e, c.FDs, slot.giveAway())
	default:
		c.Close()
		err = fmt.Errorf("its kind is %.20q, with %d descriptors", e.Kind, n)
	}
	if err == nil {
		g.metrics.imported.WithLabelValues(e.Kind).Inc()
	}
	return err
}

// errNotHere ends the search for the server of a connection: its session does not run.
var errNotHere = errors.New("the session has left")

// rejoin finds the session whose server the connection has. If it has left, the Left of the
// route is closed.
func (g *Gateway) rejoin(ctx context.Context, e exported) (r holdfast.Route, release func()) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.ParkTime)
	defer cancel()
	r, release, err := g.sessions.Acquire(ctx, e.Session, func() error { return errNotHere })
	if err == nil && r.Node == "" && r.Epoch == e.Epoch {
		return r, release
	}
	if err == nil {
		release()
	}
	left := make(chan struct{})
	close(left)
	return holdfast.Route{Key: e.Session, Epoch: e.Epoch, Left: left}, func() {}
}

// importKept serves a WebSocket that is kept. fds are the client's socket, and that of its
// server if it has one.
func (g *Gateway) importKept(ctx context.Context, e exported, fds []int, slot *slot) error {
	x := reattach.Exported{Client: fds[0], Server: -1}
	if len(fds) > 1 {
		x.Server = fds[1]
	}
	client, conn, err := x.Open()
	if err != nil {
		slot.free()
		return err
	}
	k := &keptSocket{
		gateway: g, link: link{e.target(), e.Client, holdfast.Route{Key: e.Session, Epoch: e.Epoch}},
		policy: *e.Policy, protocol: e.Protocol, req: e.Request.request(),
	}
	var server reattach.Server
	if conn != nil {
		r, release := g.rejoin(ctx, e)
		k.link.route = r
		server = reattach.Server{Conn: conn, Left: r.Left, Release: release, Activity: byData(r, true)}
	}
	spec := k.spec(client, server, g.countUpgraded(slot.free))
	spec.Before = e.Kept
	err = g.addKeptSpec(spec)
	if err != nil {
		spec.Done()
	}
	return err
}

// importRelayed serves another upgraded connection, or one to a TCP address.
func (g *Gateway) importRelayed(ctx context.Context, e exported, fds []int, slot *slot) error {
	spec, err := relay.Exported{Client: fds[0], Upstream: fds[1], State: *e.Relay}.Open()
	if err != nil {
		slot.free()
		return err
	}
	r, release := g.rejoin(ctx, e)
	free := func() { release(); slot.free() }
	to := g.relay
	if e.Kind == kindTCP {
		to = g.streams
		if !g.handlers.enter() {
			spec.Client.Close()
			spec.Upstream.Close()
			free()
			return errStopping
		}
		g.metrics.tcp.Inc()
		spec.Done = func() { free(); g.metrics.tcp.Dec(); g.handlers.leave() }
	} else {
		spec.Done = g.countUpgraded(free)
	}
	spec.WebSocket, spec.Reason = e.WebSocket, e.Reason
	spec.Left, spec.Activity = r.Left, byData(r, false)
	spec.Export = g.exportRelayed(link{e.target(), e.Client, r}, e.Kind, e.WebSocket, e.Reason)
	err = to.Add(spec)
	if err != nil {
		spec.Done()
	}
	return err
}
