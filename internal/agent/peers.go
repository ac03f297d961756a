package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/pki"
)

// peers connects to the other nodes of the fleet. A machine that has vanished sends no
// answer at all, so a dial has a short limit, and idle connections are probed.
type peers struct {
	id     *pki.Identity
	dialer net.Dialer
}

func newPeers(id *pki.Identity) *peers {
	return &peers{id: id, dialer: net.Dialer{Timeout: 2 * time.Second, KeepAliveConfig: keepAlive(), Control: unanswered}}
}

// keepAlive detects a peer that has vanished.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}
}

// deaf is how long data may stay unacknowledged until the connection is closed, about as
// long as keepAlive takes. Keep-alive probes are not sent while data is unacknowledged
// (TCP_USER_TIMEOUT, tcp(7), RFC 5482).
const deaf = 11 * time.Second

func unanswered(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deaf.Milliseconds()))
	}); e != nil {
		return e
	}
	return err
}

// Dial connects to the peer listener of a node, and verifies the certificate of that node.
// If it fails, nothing has been sent.
func (p *peers) Dial(ctx context.Context, node holdfast.NodeID, addr string) (net.Conn, error) {
	d := tls.Dialer{NetDialer: &p.dialer, Config: p.id.ClientTLS(node)}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connecting to node %s at %s: %w", node, addr, err)
	}
	return c, nil
}

// callerOf returns the node that sent a request to the peer listener, or "" without a
// certificate, which the listener rejects before.
func callerOf(r *http.Request) holdfast.NodeID {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	node, err := pki.NodeOf(r.TLS.PeerCertificates[0])
	if err != nil {
		return ""
	}
	return node
}
