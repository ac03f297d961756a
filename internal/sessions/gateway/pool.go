package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
)

// Peers connects to other nodes. Any goroutine may call it.
type Peers interface {
	// Dial connects to the peer listener of the node at addr (host:port). It
	// returns when the handshake is done and the other side has proved that it is
	// that node. On any error, no byte of a request was sent to the node. The
	// connection uses TCP keep-alives, so that a vanished machine is detected
	// eventually.
	Dial(ctx context.Context, node holdfast.NodeID, addr string) (net.Conn, error)
}

const (
	dialTimeout = 5 * time.Second

	idlePerSession = 16 // kept-alive connections to a session's server
	idlePerNode    = 64 // to another node
	idleTotal      = 1024

	// idleTime is how long an idle connection is kept. The server of
	// PeerForwardHandler needs a longer IdleTimeout, so that the side that sends
	// requests closes first.
	idleTime = 30 * time.Second
)

// errAlone is the error for a route to another node if this node has no fleet
// certificates.
var errAlone = errors.New("the session is on another node, and this node is in no fleet")

// newPool returns a pool of kept-alive connections.
func (g *Gateway) newPool(idle int, expect time.Duration) *http.Transport {
	return &http.Transport{
		DialContext:            g.dialPooled,
		MaxIdleConns:           idleTotal,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        idleTime,
		ResponseHeaderTimeout:  g.cfg.ResponseTimeout,
		ExpectContinueTimeout:  expect,
		MaxResponseHeaderBytes: int64(g.cfg.MaxHeaderBytes),
		DisableCompression:     true, // bytes pass through unchanged
	}
}

// poolHost returns the host name that stands in for the address in a pool. For
// a server of a session it names the epoch, so that no connection is reused for
// a later session at the same address, and the port. For a node it names the node
// and its address.
func poolHost(r holdfast.Route) string {
	if r.Node != "" {
		return fmt.Sprintf("%x.at-%x", string(r.Node), r.Address)
	}
	return fmt.Sprintf("%s.epoch-%d.port-%s", r.Key, r.Epoch, r.Address[strings.LastIndexByte(r.Address, ':')+1:])
}

// routeKey is the context key of the route of one attempt. A dial may outlive
// the attempt that started it.
type routeKey struct{}

// dialPooled opens a new connection for a pool.
func (g *Gateway) dialPooled(ctx context.Context, _, _ string) (net.Conn, error) {
	r, _ := ctx.Value(routeKey{}).(holdfast.Route)
	c, err := g.dial(ctx, r)
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: c}, nil
}

// dial connects to the server of the route, or to its node. The error is a
// *refusedError or errAlone.
func (g *Gateway) dial(ctx context.Context, r holdfast.Route) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if r.Node != "" {
		if g.peers == nil {
			return nil, fmt.Errorf("node %s: %w", r.Node, errAlone)
		}
		c, err := g.peers.Dial(ctx, r.Node, r.Address)
		if err != nil {
			return nil, &refusedError{error: fmt.Errorf("node %s at %s: %w", r.Node, r.Address, err)}
		}
		return c, nil
	}
	c, err := g.dialer.DialContext(ctx, "tcp", r.Address)
	if err != nil {
		return nil, &refusedError{error: err, byServer: true}
	}
	// If the session left meanwhile, the address may belong to another session.
	if closing.Closed(r.Left) {
		c.Close()
		return nil, &refusedError{error: fmt.Errorf("session %s left %s during the dial", r.Key, r.Address)}
	}
	return c, nil
}

// countedConn counts the bytes written.
type countedConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}
