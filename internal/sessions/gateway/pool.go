package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"holdfast"
)

// Peers connects to other nodes. Any goroutine may call it.
type Peers interface {
	// Dial connects to the node's peer listener at addr (host:port) and
	// returns when both sides know each other: when the handshake is done
	// and the other is the node that was asked for. Whatever the error is,
	// the node has not been sent a byte of a request. The connection has
	// keep-alives, so that a machine that vanishes is noticed in the end.
	Dial(ctx context.Context, node holdfast.NodeID, addr string) (net.Conn, error)
}

const (
	dialTimeout = 5 * time.Second

	idlePerSession = 16 // kept-alive connections to a session's server
	idlePerNode    = 64 // to another node
	idleTotal      = 1024

	// idleTime is how long one is kept. Hop has to be served with a longer
	// IdleTimeout, so that the side that sends requests closes first.
	idleTime = 30 * time.Second
)

// errAlone is a route to another node where there are no fleet's certificates.
var errAlone = errors.New("the session is on another node, and this one is in no fleet")

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
		DisableCompression:     true, // bytes go through as they are
	}
}

// poolHost stands in for the address in a pool. To a session's server it names
// this one life of the session, so that no connection is used for another that
// got the same address later. To a node it names the node at that address.
func poolHost(r holdfast.Route) string {
	if r.Node != "" {
		return fmt.Sprintf("%x.at-%x", string(r.Node), r.Address)
	}
	return fmt.Sprintf("%s.epoch-%d", r.Key, r.Epoch)
}

// routeKey is for the route of one attempt. A dial may outlive the attempt that
// asked for it.
type routeKey struct{}

// dialPooled is called by a pool for a new connection.
func (g *Gateway) dialPooled(ctx context.Context, _, _ string) (net.Conn, error) {
	r, _ := ctx.Value(routeKey{}).(holdfast.Route)
	c, err := g.dial(ctx, r)
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: c}, nil
}

// dial connects to the route's server, or to its node. Its error is a
// *refusedError, or errAlone.
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
	// Where the session left meanwhile, the address may be somebody else's.
	if closed(r.Left) {
		c.Close()
		return nil, &refusedError{error: fmt.Errorf("session %s left %s during the dial", r.Key, r.Address)}
	}
	return c, nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// countedConn counts what was written.
type countedConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}
