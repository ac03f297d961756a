package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/sessions/gateway/relay"
	"holdfast/internal/sessions/gateway/upstream"
)

// writeHeadTimeout is how long a client may take to accept the header of a 101.
const writeHeadTimeout = 10 * time.Second

// switched reports that a server agreed to an upgrade: its connection now
// carries the other protocol.
type switched struct {
	resp  *http.Response
	conn  net.Conn
	ahead []byte // read from conn after the header
}

func (*switched) Error() string { return "switching protocols" }

// mayUpgrade reports whether the connection may switch to the named protocol. If
// another node serves the session, that node decides.
func (t *request) mayUpgrade(name string) bool {
	return strings.EqualFold(name, "websocket") || t.route.Node != "" ||
		slices.ContainsFunc(t.route.Upgrades, func(allowed string) bool { return strings.EqualFold(allowed, name) })
}

// roundTripUpgrade sends an upgrade request to the server on a new connection.
// If the server agrees, the error is a *switched; any other response is
// returned as such.
func (g *Gateway) roundTripUpgrade(req *http.Request, y *try) (*http.Response, error) {
	ctx := req.Context()
	raw, err := g.dial(ctx, y.request.route)
	if err != nil {
		return nil, err
	}
	conn := &upstream.CountedConn{Conn: raw}
	y.conn = conn
	conn.SetDeadline(time.Now().Add(g.cfg.ResponseTimeout))
	unhook := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	if y.request.localKeepPolicy(req.Header) != nil {
		req = plainFrames(req)
	}
	resp, ahead, err := handshake(conn, req, g.cfg.MaxHeaderBytes, &y.answered)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		if !unhook() {
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	conn.SetDeadline(time.Time{})
	if resp.StatusCode != http.StatusSwitchingProtocols {
		if ctx.Err() != nil {
			conn.SetDeadline(time.Unix(1, 0))
		}
		resp.Body = &connBody{resp.Body, conn}
		return resp, nil
	}
	return nil, &switched{resp: resp, conn: raw, ahead: buffered(ahead)}
}

// buffered returns a copy of what a reader has buffered. The connection may last for days, and
// the buffer of 4 KiB is not kept that long.
func buffered(r *bufio.Reader) []byte {
	b, _ := r.Peek(r.Buffered())
	return bytes.Clone(b)
}

// handshake writes req and reads the header of its response. The body is to be
// read through ahead. answered is set at the first byte of the response.
func handshake(conn net.Conn, req *http.Request, maxHeader int, answered *atomic.Bool) (resp *http.Response, ahead *bufio.Reader, err error) {
	if err := req.Write(conn); err != nil {
		return nil, nil, err
	}
	limited := &io.LimitedReader{R: conn, N: int64(maxHeader)}
	ahead = bufio.NewReader(limited)
	if _, err := ahead.Peek(1); err != nil {
		return nil, nil, err
	}
	answered.Store(true)
	resp, err = upstream.ReadResponse(ahead, req, func(*http.Response) {})
	if err != nil {
		if limited.N <= 0 {
			err = fmt.Errorf("the response's header is longer than %d bytes", maxHeader)
		}
		return nil, nil, err
	}
	if asked, got := req.Header.Get("Upgrade"), resp.Header.Get("Upgrade"); resp.StatusCode == http.StatusSwitchingProtocols && !strings.EqualFold(asked, got) {
		return nil, nil, fmt.Errorf("the server switched to %q, %q was asked for", got, asked)
	}
	limited.N = math.MaxInt64
	return resp, ahead, nil
}

// connBody is a body that closes its connection when it is closed.
type connBody struct {
	io.ReadCloser
	conn net.Conn
}

func (b *connBody) Close() error {
	return errors.Join(b.ReadCloser.Close(), b.conn.Close())
}

// upgrade answers the client with the server's 101 and then relays. If it
// returns an error, nothing has been answered.
func (g *Gateway) upgrade(a *answer, req *http.Request, t *request, s *switched) error {
	if a.pace != nil {
		a.pace.stop() // its deadlines are not for the new protocol
	}
	client, rw, err := http.NewResponseController(a).Hijack()
	if err != nil {
		s.conn.Close()
		return fmt.Errorf("upgrade: %w", err)
	}
	a.hijacked = true
	early := buffered(rw.Reader)
	client, freeConn := takeOut(client)
	slot := t.slot.giveAway()
	free := func() {
		slot.free() // first: the next connection needs a place for its request
		freeConn()
	}

	policy := t.keepPolicy(req, s)
	head := s.resp
	head.Request = req
	t.rewriteResponse(head)
	if policy != nil && t.forwarded {
		setKeepHeader(head.Header, *policy)
	}
	rw.Writer.Reset(client)
	client.SetDeadline(time.Now().Add(writeHeadTimeout))
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\n")
	head.Header.Write(rw)
	rw.WriteString("\r\n")
	if err := rw.Flush(); err != nil { // the client has gone
		client.Close()
		free()
		s.conn.Close()
		return nil
	}
	client.SetDeadline(time.Time{})

	ended := g.countUpgraded(free)
	if policy != nil {
		err = g.addKept(req, t, s, *policy, client, early, ended)
	} else {
		release, over := t.takeRelease(), ended // the relay calls both from now on
		ended = func() { over(); release() }
		err = g.relay.Add(relay.Spec{
			Client: client, Upstream: s.conn, ToUpstream: early, ToClient: s.ahead,
			WebSocket: isWebSocket(req.Header),
			Left:      t.route.Left,
			Activity:  byData(t.route, false), Reason: reasonOf(req.Header),
			Export: g.exportRelayed(link{t.target, t.client, t.route}, kindRelay, isWebSocket(req.Header), reasonOf(req.Header)),
			Done:   ended,
		})
	}
	if err != nil { // stopping
		ended()
		g.log.Debug("an upgraded connection came too late", "session", t.key, "err", err)
	}
	return nil
}

// countUpgraded counts an upgraded connection until ended is called, which calls free.
func (g *Gateway) countUpgraded(free func()) (ended func()) {
	g.metrics.upgraded.Inc()
	g.upgraded.Add(1)
	return func() {
		free()
		g.metrics.upgraded.Dec()
		g.upgraded.Add(-1)
	}
}
