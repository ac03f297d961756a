package scale

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"

	"holdfast"
	"holdfast/internal/sessions/fleet"
)

// network connects simulated nodes by pipes in memory. A dial to a vanished node hangs,
// because no host refuses it.
type network struct {
	mu    sync.Mutex
	nodes map[holdfast.NodeID]*pipes
}

func newNetwork() *network { return &network{nodes: map[holdfast.NodeID]*pipes{}} }

func (w *network) join(id holdfast.NodeID, p *pipes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[id] = p
}

// dialer returns the dial function of a node.
func (w *network) dialer(from holdfast.NodeID) fleet.Dial {
	return func(ctx context.Context, to holdfast.NodeID, _ string) (net.Conn, error) {
		w.mu.Lock()
		p := w.nodes[to]
		w.mu.Unlock()
		if p == nil {
			return nil, fmt.Errorf("connecting to node %s: there is none", to)
		}
		ours, theirs := net.Pipe()
		select {
		case p.calls <- call{theirs, from}:
			return ours, nil
		case <-ctx.Done():
			ours.Close()
			theirs.Close()
			return nil, fmt.Errorf("connecting to node %s: %w", to, ctx.Err())
		}
	}
}

// call is the connection of the called node.
type call struct {
	net.Conn
	from holdfast.NodeID
}

type callerKey struct{}

func withCaller(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, callerKey{}, c.(call).from)
}

// callerOf returns the calling node. In a real fleet the certificate names it.
func callerOf(r *http.Request) holdfast.NodeID {
	id, _ := r.Context().Value(callerKey{}).(holdfast.NodeID)
	return id
}

// pipes is a node's listener.
type pipes struct {
	calls chan call
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{calls: make(chan call), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.calls:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }
