package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/linux/standby"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/deadman"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/gateway"
	"holdfast/internal/sessions/move"
	"holdfast/internal/sessions/session"
)

// openIdentity reads the node's certificate if the node is part of a fleet.
func (a *Agent) openIdentity() error {
	if a.cfg.Fleet.Listen == "" {
		return nil
	}
	id, err := identity(a.cfg, a.log)
	if err != nil {
		return err
	}
	if id.Node() != a.node {
		return holdfast.WithHint(fmt.Errorf("fleet.certificates: %s has the certificate of node %s, this is node %s", a.cfg.Fleet.Certificates, id.Node(), a.node),
			"make this node's own: holdfast node join --node "+string(a.node))
	}
	a.peers = newPeers(id)
	return nil
}

// listenFleet opens the listener for other nodes if the node is part of a fleet.
func (a *Agent) listenFleet(l *listeners) error {
	if a.peers == nil {
		return nil
	}
	// Accepted connections inherit the options of the listener (tcp(7)).
	c := net.ListenConfig{KeepAliveConfig: keepAlive(), Control: unanswered}
	d, err := a.openTCP(l, fleetListener, c, "fleet.listen", "--fleet", a.cfg.Fleet.Listen)
	if err == nil {
		l.fleet = tls.NewListener(d, a.peers.id.ServerTLS())
	}
	return err
}

// startDeadman starts the process that kills this node's containers if the agent cannot
// renew its lease. An embedded store needs no deadman: no other node can claim in it.
func (a *Agent) startDeadman(p *tasks.Stack) (session.Deadman, error) {
	if a.leaseConfig().Fence == 0 {
		return nil, nil
	}
	d, err := deadman.Start(a.opt.Deadman, a.cfg.RunDir, a.node, a.log)
	if errors.Is(err, deadman.ErrOtherNode) {
		return nil, holdfast.WithHint(fmt.Errorf("run_dir: %w", err), "give each node of a host its own run_dir; or first end the sessions of that node with its agent and holdfast drain")
	}
	if err != nil {
		return nil, holdfast.WithHint(err, "without the deadman two nodes could run one session; the log has the reason")
	}
	a.deadman = d
	p.Start("deadman", d.Run)
	p.Start("program in memory", a.keepProgram)
	return d, nil
}

// keepProgram keeps this program in memory. An agent that waits for the disk, where other
// programs take the memory, may not renew the lease in time. The deadman keeps the pages of
// its own program, which is an earlier one after an upgrade.
func (a *Agent) keepProgram(ctx context.Context) error {
	if err := standby.LockProgram(); err != nil {
		a.log.Warn("the program cannot be kept in memory: short of memory, this node may lose its lease", "err", err)
	}
	<-ctx.Done()
	return nil
}

// newFleet joins this node's sessions to those of the other nodes.
func (a *Agent) newFleet() *fleet.Fleet {
	deps := fleet.Deps{
		Store: a.store, Local: a.sessions, Dial: a.peers.Dial, Fetch: a.sessions.Fetch, Caller: callerOf,
		OnOwnRecord: a.sessions.ReclaimOrphan, OnEvent: a.sessions.Observe, Draining: a.sessions.Draining, Metrics: fleet.NewMetrics(a.metrics), Log: a.log,
		CanRun: a.sessions.CanRun, OnNodeLost: a.past.NodeLost,
		IsSuspended: func(ctx context.Context, key holdfast.SessionKey) (bool, error) {
			return move.IsSuspended(ctx, a.store, key)
		},
	}
	if a.mover != nil {
		deps.KeepSuspended = a.sessions.KeepSuspended
		deps.ReceiveImage, deps.GiveImage, deps.GiveSnapshot, deps.PreferredNode, deps.OnClaim = a.mover.Receive, a.mover.Give, a.mover.GiveSnapshot, a.mover.Prefer, a.mover.Claimed
	}
	f := fleet.New(fleet.Config{Node: a.node, MaxShare: a.cfg.Doctor.Rotation.MaxShare}, deps)
	if a.mover != nil {
		a.mover.Join(f)
	}
	return f
}

// fleetConns is the number of connections from other nodes beside those that carry
// requests of clients: for their queries, and idle ones.
const fleetConns = 16384

// fleetHandler serves other nodes: forwarded requests of clients, queries about sessions,
// and the routes of the API.
func (a *Agent) fleetHandler(g *gateway.Gateway, routes http.Handler) http.Handler {
	forwarded, questions := g.PeerForwardHandler(a.sessions), a.fleet.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case gateway.Forwarded(r):
			unbound(w)
			forwarded.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, "/fleet/v1/"):
			unbound(w)
			g.LastAnswer(w)
			questions.ServeHTTP(w, r)
		default:
			g.LastAnswer(w)
			routes.ServeHTTP(w, r)
		}
	})
}

// unbound removes the API's limit on the duration of an answer: a session may stream for
// hours, and a query may wait long.
func unbound(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the server's own connections can
}

// forward sends an API request to another node.
func (a *Agent) forward(node holdfast.NodeID) (http.RoundTripper, error) {
	n, err := a.peerOf(node)
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return a.dialTo(n)(ctx) },
		DisableKeepAlives: true, // operators send single requests
	}, nil
}

// peerOf returns the record of another node that accepts forwarded requests. Errors:
// holdfast.ErrNotFound.
func (a *Agent) peerOf(node holdfast.NodeID) (holdfast.Node, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	n, err := a.store.Node(ctx, node)
	if err == nil && n.PeerAddress == "" {
		err = fmt.Errorf("it accepts no connections from other nodes: %w", holdfast.ErrNotFound)
	}
	return n, err
}

// clientOf returns a client of another node's API. The caller closes it.
func (a *Agent) clientOf(node holdfast.NodeID) (*client.Client, error) {
	n, err := a.peerOf(node)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	return a.clientTo(n)
}

func (a *Agent) clientTo(n holdfast.Node) (*client.Client, error) {
	return client.New(client.Options{Name: "node " + string(n.ID), Dial: a.dialTo(n)})
}

// dialTo connects to the peer listener of a node.
func (a *Agent) dialTo(n holdfast.Node) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return a.peers.Dial(ctx, n.ID, n.PeerAddress) }
}
