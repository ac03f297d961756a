package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/gateway/relay"
)

// TCPAddress is an address whose connections go to one session, or to the replicas of one
// group, whatever protocol they speak.
type TCPAddress struct {
	Listener net.Listener // of TCP sockets
	Key      holdfast.SessionKey
	Port     int // of the container; 0 is the template's own port
}

func closeAll(tcp []TCPAddress) {
	for _, a := range tcp {
		a.Listener.Close()
	}
}

// startTCP serves the addresses until stop is called. Their listeners are closed before
// that, and no connection is open.
func (g *Gateway) startTCP(ctx context.Context, tcp []TCPAddress) (stop func() error) {
	relaying, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(g.cut, cancel)
	ended := make(chan error, 1)
	go func() { ended <- g.streams.Run(relaying) }()
	var accepting sync.WaitGroup
	for _, a := range tcp {
		accepting.Go(func() { g.acceptTCP(relaying, a) })
	}
	return func() error {
		accepting.Wait()
		unhook()
		cancel()
		return <-ended
	}
}

// acceptPause is the pause after a failed accept, which mostly lacks a descriptor.
const acceptPause = 100 * time.Millisecond

// acceptTCP serves an address until its listener is closed.
func (g *Gateway) acceptTCP(ctx context.Context, a TCPAddress) {
	ln := newLimitListener(a.Listener, g.cfg.MaxConnections)
	for {
		c, err := ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			g.log.Warn("a TCP address accepts no connections at the moment", "session", a.Key, "address", a.Listener.Addr(), "err", err)
			_ = tasks.Sleep(ctx, acceptPause)
		case !g.handlers.enter():
			c.Close()
		default:
			go func() {
				defer g.handlers.leave()
				g.serveTCP(ctx, c, target{key: a.Key, port: a.Port})
			}()
		}
	}
}

// serveTCP connects a client to its session, and returns when both connections are closed.
// A client whose session is not ready waits as a request does.
func (g *Gateway) serveTCP(ctx context.Context, c net.Conn, to target) {
	client, free := takeOut(c)
	defer free()
	g.metrics.connects.WithLabelValues("tcp").Inc()
	g.metrics.tcp.Inc()
	defer g.metrics.tcp.Dec()
	from := clientOf(client.RemoteAddr().String())
	slot, err := g.slots.wait(ctx, from)
	defer slot.free()
	t := &request{target: to, gateway: g, client: from, patience: g.cfg.ParkTime, raw: true}
	defer t.done()
	var server *switched
	if err == nil {
		server, err = g.reachTCP(ctx, client, t)
	}
	if err != nil {
		g.refuseTCP(client, t, err)
		return
	}
	done := make(chan struct{})
	err = g.streams.Add(relay.Spec{
		Client: client, Upstream: server.conn, ToClient: server.ahead,
		Left: t.route.Left, Activity: byData(t.route, false), Reason: holdfast.WokenByStream,
		Export: g.exportRelayed(link{t.target, t.client, t.route}, kindTCP, false, holdfast.WokenByStream),
		Done:   func() { close(done) },
	})
	if err != nil { // stopping
		g.log.Debug("a TCP connection came too late", "session", t.key, "err", err)
		return
	}
	<-done
}

// reachTCP connects to the session's server, as reach does.
func (g *Gateway) reachTCP(ctx context.Context, client net.Conn, t *request) (*switched, error) {
	ctx, end := context.WithCancel(ctx) // the gateway's context outlives the connection
	defer end()
	waiting, unwatch := ctx, func() {}
	if raw := relay.Socket(client); raw != nil {
		waiting, unwatch = watchHangup(ctx, raw)
	}
	defer unwatch()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {rawProtocol}, rawHeader: {rawProtocol}} // for another node
	err = t.reach(waiting, func() error {
		resp, err := (&try{request: t}).do(g, req)
		if err == nil {
			resp.Body.Close()
			err = errNotRaw
		}
		return err
	})
	server, ok := errors.AsType[*switched](err)
	if !ok {
		return nil, err
	}
	return server, nil
}

// refuseTCP resets the client's connection: the protocol is unknown, so no text can say why.
func (g *Gateway) refuseTCP(client net.Conn, t *request, err error) {
	p := explain(t.target, err)
	g.metrics.errors.WithLabelValues(p.label).Inc()
	g.log.Debug("a TCP connection is refused", "session", t.key, "err", err)
	if c, ok := client.(*net.TCPConn); ok {
		_ = c.SetLinger(0) // the client has gone if it fails
	}
	client.Close()
}

// rawProtocol is the name of the protocol to which the connection between two gateways
// switches for a TCP connection.
const rawProtocol = "tcp"

// errNotRaw reports that the gateway of another node, which may have an earlier version,
// has not switched.
var errNotRaw = errors.New("the other node does not carry TCP connections")

// dialRaw connects to the session's server, and says nothing to it.
func (g *Gateway) dialRaw(req *http.Request, t *request) (*http.Response, error) {
	conn, err := g.dial(req.Context(), t.route)
	if err != nil {
		return nil, err
	}
	return nil, &switched{conn: conn, resp: &http.Response{
		StatusCode: http.StatusSwitchingProtocols, Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {rawProtocol}},
	}}
}
