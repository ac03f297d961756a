package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/upstream"
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

	// Kept-alive connections. One to a session takes about 1 KiB here, and an idle
	// connection of its server.
	idlePerSession = 128
	idleSessions   = 4096 // to all sessions
	idlePerNode    = 64
	idleNodes      = 1024

	// idleTime is how long an idle connection is kept. The server of
	// PeerForwardHandler needs a longer IdleTimeout, so that the side that sends
	// requests closes first.
	idleTime = 30 * time.Second
)

// errAlone is the error for a route to another node if this node has no fleet
// certificates.
var errAlone = errors.New("the session is on another node, and this node is in no fleet")

// newNodePool returns the pool of kept-alive connections to other nodes.
func (g *Gateway) newNodePool() *http.Transport {
	return &http.Transport{
		DialContext:            g.dialPooled,
		MaxIdleConns:           idleNodes,
		MaxIdleConnsPerHost:    idlePerNode,
		IdleConnTimeout:        idleTime,
		ResponseHeaderTimeout:  g.cfg.ResponseTimeout,
		ExpectContinueTimeout:  2 * offerTime, // see offer
		MaxResponseHeaderBytes: int64(g.cfg.MaxHeaderBytes),
		DisableCompression:     true, // bytes pass through unchanged
	}
}

// poolHost returns the host name that stands in for a node and its address in the pool.
func poolHost(r holdfast.Route) string { return fmt.Sprintf("%x.at-%x", string(r.Node), r.Address) }

// serverKey returns the key of the connections to the server of a route.
func serverKey(r holdfast.Route) upstream.Key {
	return upstream.Key{Session: r.Key, Epoch: r.Epoch, Address: r.Address}
}

// routeKey is the context key of the route of one attempt. A dial may outlive
// the attempt that started it.
type routeKey struct{}

// dialPooled opens a new connection to another node.
func (g *Gateway) dialPooled(ctx context.Context, _, _ string) (net.Conn, error) {
	r, _ := ctx.Value(routeKey{}).(holdfast.Route)
	c, err := g.dial(ctx, r)
	if err != nil {
		return nil, err
	}
	return &upstream.CountedConn{Conn: c}, nil
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
	c, err := g.dialTCP(ctx, "tcp", r.Address)
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
