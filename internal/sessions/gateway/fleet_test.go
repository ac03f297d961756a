package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/pki"
	"holdfast/test/poll"
)

// fleet is a set of nodes with certificates of one authority.
type fleet struct {
	t  *testing.T
	ca string
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t, filepath.Join(t.TempDir(), "ca")}
	if _, err := pki.InitCA(f.ca, time.Now()); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fleet) identity(id holdfast.NodeID) *pki.Identity {
	f.t.Helper()
	j := pki.Join{CA: f.ca, Node: id, Validity: time.Hour, Out: f.t.TempDir(), Now: time.Now()}
	if _, err := j.Do(); err != nil {
		f.t.Fatal(err)
	}
	identity, err := pki.Load(pki.FilesIn(j.Out), slog.New(slog.DiscardHandler))
	if err != nil {
		f.t.Fatal(err)
	}
	return identity
}

// peers dials like the agent.
type peers struct{ identity *pki.Identity }

func (p peers) Dial(ctx context.Context, node holdfast.NodeID, addr string) (net.Conn, error) {
	d := tls.Dialer{Config: p.identity.ClientTLS(node)}
	return d.DialContext(ctx, "tcp", addr)
}

// member is a node: a gateway, with a listener for clients and a peer listener.
type member struct {
	*fixture
	id       holdfast.NodeID
	peerAddr string // its peer listener's address
	local    *fakeLocal
	line     *line
}

// fakeLocal serves the epoch 1 of every session at address.
type fakeLocal struct {
	mu      sync.Mutex
	address string
	left    chan struct{}
	keep    *holdfast.KeepSockets
	ports   holdfast.Ports
	refuse  error // of Hold
	asked   int
	held    int
}

func (l *fakeLocal) Hold(key holdfast.SessionKey, epoch holdfast.Epoch) (holdfast.Route, func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if l.refuse != nil {
		return holdfast.Route{}, nil, l.refuse
	}
	if epoch != 1 {
		return holdfast.Route{}, nil, errors.New("another epoch")
	}
	l.held++
	return holdfast.Route{Key: key, Address: l.address, Epoch: epoch, Left: l.left, Keep: l.keep, Ports: l.ports, Upgrades: []string{"chat"}}, sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held--
	}), nil
}

func (l *fakeLocal) count() (asked, held int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked, l.held
}

// set changes the result of Hold.
func (l *fakeLocal) set(f func(*fakeLocal)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

// line is a listener that counts its connections, and can cut them as if the machine
// vanished.
type line struct {
	net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	accepted int
	read     atomic.Int64
}

type lineConn struct {
	net.Conn
	line *line
}

func (c lineConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.line.read.Add(int64(n))
	return n, err
}

func (l *line) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted++
	l.conns = append(l.conns, c)
	return lineConn{c, l}, nil
}

// cut resets every connection.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	l.conns = nil
}

func (l *line) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepted
}

// join starts a node. handler serves its sessions, if it has any.
func (f *fleet) join(id holdfast.NodeID, handler http.HandlerFunc, change func(*Config)) *member {
	f.t.Helper()
	identity := f.identity(id)
	m := &member{fixture: startWith(f.t, nil, peers{identity}, change), id: id}
	m.failWith(errors.New("must not be asked: " + string(id)))
	m.local = &fakeLocal{left: make(chan struct{}), refuse: errors.New("not here")}
	if handler != nil {
		srv := httptest.NewServer(handler)
		f.t.Cleanup(srv.Close)
		f.t.Cleanup(srv.CloseClientConnections)
		m.local.address, m.local.refuse = srv.Listener.Addr().String(), nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	m.peerAddr, m.line = ln.Addr().String(), &line{Listener: ln}
	srv := &http.Server{Handler: m.gateway.PeerForwardHandler(m.local), TLSConfig: identity.ServerTLS(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	srv.Protocols = &http.Protocols{}
	srv.Protocols.SetHTTP1(true)
	end := make(chan struct{})
	go func() { defer close(end); srv.ServeTLS(m.line, "", "") }()
	f.t.Cleanup(func() {
		srv.Close()
		<-end
		m.stop()
		poll.Until(f.t, "every Hold is released", func() bool { _, held := m.local.count(); return held == 0 })
	})
	return m
}

// route returns the route to key on m for other nodes.
func (m *member) route(key holdfast.SessionKey, left <-chan struct{}) holdfast.Route {
	return holdfast.Route{Key: key, Node: m.id, Address: m.peerAddr, Epoch: 1, Left: left}
}

// leadTo routes the sessions of m's clients to these nodes. Each refusal leads to the
// next node; the last node stays.
func (m *member) leadTo(owners ...*member) {
	m.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		m.sessions.mu.Lock()
		defer m.sessions.mu.Unlock()
		n := min(len(m.sessions.refused), len(owners)-1)
		return owners[n].route(key, m.left), nil
	})
}

func (m *member) refusals() int {
	m.sessions.mu.Lock()
	defer m.sessions.mu.Unlock()
	return len(m.sessions.refused)
}

// echoBody answers with the body and its own id.
func echoBody(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Served-By", name)
		_ = http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	}
}

func newTLSListener(identity *pki.Identity) (net.Listener, error) {
	return tls.Listen("tcp", "127.0.0.1:0", identity.ServerTLS())
}
