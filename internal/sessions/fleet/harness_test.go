package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
)

func TestMain(m *testing.M) {
	unique.Make("") // starts its own goroutine at the first call, which must not be in a bubble
	goleak.VerifyTestMain(m)
}

const (
	ttl = 10 * time.Second // of a node's lease
	key = holdfast.SessionKey("alice")
)

// network connects nodes by pipes, which follow fake time. A node that is cut off
// neither accepts nor refuses connections; a node that is shut refuses them.
type network struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
}

type pipeListener struct {
	conns chan net.Conn
	shut  chan struct{}
	cut   bool
}

func (w *network) open(addr string) *pipeListener {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := &pipeListener{conns: make(chan net.Conn), shut: make(chan struct{})}
	w.listeners[addr] = d
	return d
}

func (w *network) cut(addr string, off bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners[addr].cut = off
}

func (w *network) dial(ctx context.Context, _ holdfast.NodeID, addr string) (net.Conn, error) {
	w.mu.Lock()
	d := w.listeners[addr]
	cut := d != nil && d.cut
	w.mu.Unlock()
	switch {
	case d == nil:
		return nil, errors.New("no process listens there")
	case cut:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	here, there := net.Pipe()
	select {
	case d.conns <- there:
		return here, nil
	case <-d.shut:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.shut:
		return nil, net.ErrClosed
	}
}

func (d *pipeListener) Close() error {
	select {
	case <-d.shut:
	default:
		close(d.shut)
	}
	return nil
}

func (d *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// world is a fleet in one process, with one store.
type world struct {
	t     *testing.T
	store *memstore.Store
	lag   time.Duration // of the nodes' watches
	net   *network

	mu    sync.Mutex
	nodes []*node // including ended ones
}

// node is one node of a world. Its lease is renewed until it dies.
type node struct {
	*Fleet
	w      *world
	id     holdfast.NodeID
	host   *host
	record holdfast.Node
	reg    *prometheus.Registry
	lease  store.LeaseID
	server *http.Server
	stop   context.CancelFunc
	fetch  func(context.Context, string) error
	keep   func(context.Context, holdfast.SessionKey, string) error
	prefer holdfast.NodeID // has an image of every session
	lost   atomic.Int32    // sessions whose loss it has seen
	ended  sync.WaitGroup
}

// bubble runs a test in fake time with a fleet of n nodes, all ready.
func bubble(t *testing.T, n int, f func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range n {
			w.add()
		}
		for _, x := range w.nodes {
			<-x.dir.Ready()
		}
		f(t, w)
	})
}

// slowWatch is a store whose watches report each event late.
type slowWatch struct {
	*memstore.Store
	lag time.Duration
}

func (s slowWatch) Watch(ctx context.Context, after holdfast.Revision) <-chan store.Event {
	events := s.Store.Watch(ctx, after)
	if s.lag == 0 {
		return events
	}
	late := make(chan store.Event)
	go func() {
		defer close(late)
		for e := range events {
			time.Sleep(s.lag)
			select {
			case late <- e:
			case <-ctx.Done():
			}
		}
	}()
	return late
}

func newWorld(t *testing.T) *world {
	return &world{t: t, store: memstore.New(100000), net: &network{listeners: map[string]*pipeListener{}}}
}

// add starts another node that ends with the test.
func (w *world) add() *node {
	id := holdfast.NodeID(fmt.Sprintf("node-%02d", len(w.nodes)))
	x := w.make(id, string(id)+":1", w.net.dial, w.net.open(string(id)+":1"))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = append(w.nodes, x)
	return x
}

func (w *world) make(id holdfast.NodeID, peer string, dial Dial, l net.Listener) *node {
	w.t.Helper()
	lease, _, err := w.store.Grant(w.t.Context(), ttl)
	must(w.t, err)
	ctx, stop := context.WithCancel(context.Background())
	x := &node{
		w: w, id: id, lease: lease, stop: stop, host: newHost(id, w.store, lease),
		record: holdfast.Node{ID: id, PeerAddress: peer, Slots: 4},
		reg:    prometheus.NewRegistry(),
		fetch:  func(context.Context, string) error { return nil },
		keep:   func(context.Context, holdfast.SessionKey, string) error { return nil },
	}
	x.Fleet = New(Config{Node: id}, Deps{
		Store: slowWatch{w.store, w.lag}, Local: x.host,
		Dial: func(ctx context.Context, to holdfast.NodeID, addr string) (net.Conn, error) {
			c, err := dial(ctx, to, addr)
			if err == nil {
				_, err = fmt.Fprintf(c, "%-32s", id) // replaces a certificate
			}
			return c, err
		},
		Fetch:         func(ctx context.Context, name string) error { return x.fetch(ctx, name) },
		PreferredNode: func(context.Context, holdfast.SessionKey) holdfast.NodeID { return x.prefer },
		IsSuspended:   x.isSuspended,
		KeepSuspended: func(ctx context.Context, key holdfast.SessionKey, template string) error {
			return x.keep(ctx, key, template)
		},
		Caller:      callerOf,
		CanRun:      func(string) error { return nil },
		OnOwnRecord: func(holdfast.Owner) {},
		OnNodeLost:  func(holdfast.Owner) { x.lost.Add(1) },
		Draining: func() (draining bool) {
			x.host.with(func() { draining = x.host.draining })
			return draining
		},
		Metrics: NewMetrics(x.reg), Log: testLog(),
	})
	x.server = &http.Server{
		Handler:     x.Handler(),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, callerKey{}, c)
		},
	}
	x.publish()
	x.ended.Go(func() { _ = x.server.Serve(&named{l}) })
	x.ended.Go(func() {
		if err := x.Run(ctx); err != nil {
			w.t.Errorf("node %s: Run: %v", id, err)
		}
	})
	x.ended.Go(func() { x.renew(ctx) })
	w.t.Cleanup(x.die)
	return x
}

// renew keeps the node's lease.
func (x *node) renew(ctx context.Context) {
	tick := time.NewTicker(ttl / 10)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = x.w.store.KeepAlive(ctx, x.lease)
		case <-ctx.Done():
			return
		}
	}
}

// publish writes the node's record.
func (x *node) publish(change ...func(*holdfast.Node)) {
	x.w.t.Helper()
	for _, f := range change {
		f(&x.record)
	}
	must(x.w.t, x.w.store.PutNode(x.w.t.Context(), x.record, x.lease))
}

// die ends the node without a release of its lease, which then expires.
func (x *node) die() {
	x.stop()
	x.host.with(func() { x.host.dead = true })
	x.server.Close()
	x.ended.Wait()
}

// count returns a counter of the node's metrics.
func (x *node) count(c *prometheus.CounterVec, label string) int {
	var m dto.Metric
	must(x.w.t, c.WithLabelValues(label).Write(&m))
	return int(m.GetCounter().GetValue())
}

// named is a listener. Each of its connections starts with the caller's name.
type named struct{ net.Listener }

type namedConn struct {
	net.Conn
	once sync.Once
	name string
}

type callerKey struct{}

func (l *named) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &namedConn{Conn: c}, nil
}

func (c *namedConn) Read(b []byte) (int, error) {
	c.once.Do(func() {
		var name [32]byte
		if _, err := io.ReadFull(c.Conn, name[:]); err == nil {
			_, _ = fmt.Sscan(string(name[:]), &c.name)
		}
	})
	return c.Conn.Read(b)
}

func callerOf(r *http.Request) holdfast.NodeID {
	c, _ := r.Context().Value(callerKey{}).(*namedConn)
	if c == nil {
		return ""
	}
	return holdfast.NodeID(c.name)
}

func testLog() *slog.Logger {
	if os.Getenv("HOLDFAST_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// acquire requests the session from a node within patience, and releases it.
func (x *node) acquire(t *testing.T, patience time.Duration) (holdfast.Route, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, release, err := x.Acquire(ctx, key, nil)
	if err == nil {
		release()
	}
	return r, err
}

// mustAcquire ends the test if acquire fails.
func (x *node) mustAcquire(t *testing.T) holdfast.Route {
	t.Helper()
	r, err := x.acquire(t, time.Minute)
	must(t, err)
	return r
}

// owner returns the node of the route from x.
func (w *world) owner(x *node, r holdfast.Route) *node {
	if r.Node == "" {
		return x
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.nodes {
		if n.id == r.Node {
			return n
		}
	}
	panic(fmt.Sprintf("the route leads to %q, which is no node", r.Node))
}
