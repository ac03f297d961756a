// Package portnode connects the API to the ports of a node's sessions.
package portnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/frame"
	"holdfast/internal/platform/metric"
)

// Sessions finds the sessions of a node.
type Sessions interface {
	// Join is that of session.Manager.
	Join(ctx context.Context, key holdfast.SessionKey) (r holdfast.Route, release func(), err error)
}

// dialLimit is how long a connection may wait for its session and its port.
const dialLimit = 10 * time.Second

// Node implements api.ForwardService. Its methods may be called from any goroutine.
type Node struct {
	sessions Sessions
	dialer   net.Dialer
	open     prometheus.Gauge
	total    *prometheus.CounterVec
}

// New returns the ports of a node's sessions.
func New(s Sessions, r prometheus.Registerer) *Node {
	m := metric.Registry{Registerer: r}
	n := &Node{sessions: s,
		open:  m.Gauge("holdfast_forwarded_connections", "Connections to ports of sessions on this node that session forward has open."),
		total: m.CounterVec("holdfast_forwarded_connections_total", "Connections to ports of sessions on this node that session forward asked for: opened; refused, by the port; failed, for any other reason.", "result"),
	}
	metric.Start(n.total, "opened", "refused", "failed")
	return n
}

// DialPort implements api.ForwardService. It dials the container's address, as the
// gateway does.
func (n *Node) DialPort(ctx context.Context, key holdfast.SessionKey, port int) (frame.Stream, error) {
	c, err := n.dial(ctx, key, port)
	result := "opened"
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		result = "refused"
		err = &api.Error{Code: api.CodePortRefused, Message: fmt.Sprintf("session %s: nothing listens on port %d", key, port),
			Advice: "the server in the container has to listen on 0.0.0.0; a server on 127.0.0.1 is not reachable"}
	case err != nil:
		result = "failed"
	}
	n.total.WithLabelValues(result).Inc()
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (n *Node) dial(ctx context.Context, key holdfast.SessionKey, port int) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	r, release, err := n.sessions.Join(ctx, key)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(r.Address)
	if err != nil {
		release()
		return nil, fmt.Errorf("the address of session %s: %w", key, err)
	}
	c, err := n.dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		release()
		if ctx.Err() != nil {
			err = ctx.Err() // the dialer's error is another one
		}
		return nil, fmt.Errorf("session %s: connecting to port %d: %w", key, port, err)
	}
	n.open.Inc()
	out := &conn{tcp: c.(*net.TCPConn), key: key, left: r.Left, session: r.Activity, closed: make(chan struct{})}
	if out.session != nil {
		out.session.ByData(false)
	}
	out.release = func() { release(); n.open.Dec() }
	// If the session left during the dial, its address may be another session's.
	if out.hasLeft() {
		out.Close()
		return nil, fmt.Errorf("session %s on this node: %w", key, holdfast.ErrNotFound)
	}
	go out.endWithSession()
	return out, nil
}

// conn is a connection to a session that ends when the session leaves.
type conn struct {
	tcp     *net.TCPConn
	key     holdfast.SessionKey
	left    <-chan struct{}
	session holdfast.Activity // nil: it does not sleep without data
	release func()
	once    sync.Once
	closed  chan struct{}
}

func (c *conn) endWithSession() {
	select {
	case <-c.left:
		c.Close()
	case <-c.closed:
	}
}

func (c *conn) hasLeft() bool {
	select {
	case <-c.left:
		return true
	default:
		return false
	}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.tcp.Read(b)
	c.moves(n)
	return n, c.explain(err)
}

func (c *conn) Write(b []byte) (int, error) {
	c.moves(len(b))
	n, err := c.tcp.Write(b)
	return n, c.explain(err)
}

// moves tells the session that the connection carries n bytes.
func (c *conn) moves(n int) {
	if c.session != nil && n > 0 {
		c.session.Data(holdfast.WokenByForward)
	}
}

// explain names the reason of a connection that ended because its session left.
func (c *conn) explain(err error) error {
	if err != nil && c.hasLeft() {
		return fmt.Errorf("session %s has left this node: %w", c.key, holdfast.ErrNotFound)
	}
	return err
}

func (c *conn) CloseWrite() error { return c.tcp.CloseWrite() }

// Close implements io.Closer. It may be called more than once.
func (c *conn) Close() (err error) {
	c.once.Do(func() {
		close(c.closed)
		err = c.tcp.Close()
		c.release()
	})
	return err
}
