package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"holdfast"
)

const (
	pathAcquire = "/fleet/v1/acquire"
	pathPrepare = "/fleet/v1/prepare"

	dialTimeout = 2 * time.Second

	// A node that works on a request sends a heartbeat every second. A node that sends
	// nothing for silenceTimeout counts as gone.
	heartbeat      = time.Second
	silenceTimeout = 4 * time.Second

	requestsPerPeer = 128 // at once, each for a different session
	idlePerPeer     = 8   // connections kept for the next request
	idleTime        = 90 * time.Second
	maxAnswer       = 64 << 10 // bytes
)

// errUnreachable means that a node did not answer: it may be gone, unreachable over
// the network, or still starting.
var errUnreachable = errors.New("node does not answer")

// errTooManyRequests means that this node has too many requests to another node in
// progress.
var errTooManyRequests = fmt.Errorf("%d requests are in progress: %w", requestsPerPeer, holdfast.ErrBusy)

// Dial connects to the peer address addr of a node and verifies that this node
// answers.
type Dial func(ctx context.Context, node holdfast.NodeID, addr string) (net.Conn, error)

// peers sends requests to other nodes. Any goroutine may call its methods.
type peers struct {
	http      *http.Client
	transport *http.Transport
	metrics   *Metrics

	mu       sync.Mutex
	inFlight map[holdfast.NodeID]int // requests in progress
	dials    sync.WaitGroup          // in progress
	life     context.Context         // ends dials
	end      context.CancelFunc
}

// peerKey is the context key of the node that a connection is for.
type peerKey struct{}

type peer struct {
	node holdfast.NodeID
	addr string
}

func newPeers(dial Dial, m *Metrics) *peers {
	p := &peers{metrics: m, inFlight: map[holdfast.NodeID]int{}}
	p.life, p.end = context.WithCancel(context.Background())
	p.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if !p.startDial() {
				return nil, net.ErrClosed
			}
			defer p.dials.Done()
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			defer context.AfterFunc(p.life, cancel)()
			to, _ := ctx.Value(peerKey{}).(peer)
			return dial(ctx, to.node, to.addr)
		},
		MaxConnsPerHost:     requestsPerPeer + 8, // prepare needs one, too
		MaxIdleConnsPerHost: idlePerPeer,
		IdleConnTimeout:     idleTime,
		DisableCompression:  true,

		MaxResponseHeaderBytes: 16 << 10,
	}
	p.http = &http.Client{
		Transport:     p.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p
}

// startDial counts a dial, which may outlive its request but not peers. It returns
// false if peers is closed.
func (p *peers) startDial() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.Err() != nil {
		return false
	}
	p.dials.Add(1)
	return true
}

// close ends dials and kept-alive connections after the last request.
func (p *peers) close() {
	p.mu.Lock()
	p.end()
	p.mu.Unlock()
	p.dials.Wait()
	p.transport.CloseIdleConnections()
}

// acquire asks a node to make the session ready, until ctx is done. Errors: those of
// the node's Local, errUnreachable, and holdfast.ErrBusy if too many requests to that
// node are in progress.
func (p *peers) acquire(ctx context.Context, to holdfast.Node, q acquireRequest) (holdfast.Owner, error) {
	if !p.addRequest(to.ID) {
		return holdfast.Owner{}, fmt.Errorf("node %s: %w", to.ID, errTooManyRequests)
	}
	defer p.removeRequest(to.ID)
	o, err := p.acquireUntilReady(ctx, to, q)
	p.metrics.peerRequests.WithLabelValues(resultOf(ctx, err)).Inc()
	return o, err
}

// acquireUntilReady repeats the request while the node answers that the session is
// pending.
func (p *peers) acquireUntilReady(ctx context.Context, to holdfast.Node, q acquireRequest) (holdfast.Owner, error) {
	for {
		start := time.Now()
		var a acquireAnswer
		if err := p.post(ctx, to, pathAcquire, q, &a); err != nil {
			return holdfast.Owner{}, err
		}
		switch {
		case a.Error != nil && a.Error.Kind == kindPending && time.Since(start) > pollTimeout/2 && ctx.Err() == nil:
			continue
		case a.Error != nil:
			return holdfast.Owner{}, a.Error.err()
		case a.Owner == nil || a.Owner.Key != q.Key || a.Owner.Node != to.ID || a.Owner.Epoch <= 0:
			return holdfast.Owner{}, fmt.Errorf("node %s: its answer does not match the request", to.ID)
		}
		return *a.Owner, nil
	}
}

func resultOf(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return "ok"
	case ctx.Err() != nil:
		return "canceled"
	case errors.Is(err, errUnreachable):
		return "unreachable"
	}
	return string(kindOf(err))
}

func (p *peers) addRequest(id holdfast.NodeID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight[id] >= requestsPerPeer {
		return false
	}
	p.inFlight[id]++
	return true
}

func (p *peers) removeRequest(id holdfast.NodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight[id]--; p.inFlight[id] == 0 {
		delete(p.inFlight, id)
	}
}

// post sends a request and reads the answer. It waits as long as the node sends
// heartbeats.
func (p *peers) post(ctx context.Context, to holdfast.Node, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("request to node %s: %w", to.ID, err)
	}
	resp, err := p.send(ctx, to, path, "application/json", bytes.NewReader(body), silenceTimeout)
	if err != nil {
		return fmt.Errorf("node %s: %w", to.ID, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("node %s %w", to.ID, unexpectedStatus(resp))
	}
	heard := io.LimitReader(resp.Body, maxAnswer)
	if err := json.NewDecoder(heard).Decode(answer); err != nil {
		return fmt.Errorf("node %s: %w: reading its answer: %w", to.ID, errUnreachable, err)
	}
	_, err = io.Copy(io.Discard, heard) // so that the connection can be reused
	if err != nil && ctx.Err() == nil && !errors.Is(err, errIdleTimeout) {
		return fmt.Errorf("node %s: %w: reading its answer: %w", to.ID, errUnreachable, err)
	}
	return nil
}

// poolName replaces the address in the pool of kept-alive connections. It contains
// node and address, so that no connection to one node is used for another node that
// now has its address.
func poolName(n holdfast.Node) string {
	sum := sha256.Sum256([]byte(string(n.ID) + "\x00" + n.PeerAddress))
	return fmt.Sprintf("%x.node", sum[:16])
}
