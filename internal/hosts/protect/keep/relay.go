package keep

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// longest limits the requests that are still running when the relay is to end.
	longest = time.Hour
	// stopLimit is for how long a signal leaves requests to be answered.
	stopLimit = 5 * time.Second
	// linger is for how long the end of a connection may wait for the client's own end, so
	// that a late request is not answered by a reset.
	linger = time.Second
	// dialLimit limits the wait for the new server. During the next restart a hold ends
	// before, at its own limit.
	dialLimit = 2 * time.Minute
)

// relay passes the requests of kept connections on to the server that listens now. Each
// request has a connection of its own to that server: during the next restart it waits like
// any new connection, and none is idle.
type relay struct {
	life    time.Duration
	ending  atomic.Bool
	server  *http.Server
	accepts chan net.Conn
	ended   chan struct{} // closed when no connection is left
	closed  chan struct{} // by Close
	closing sync.Once
	open    sync.WaitGroup
}

func newRelay(life time.Duration) *relay {
	r := &relay{life: life, accepts: make(chan net.Conn), ended: make(chan struct{}), closed: make(chan struct{})}
	silent := log.New(io.Discard, "", 0)
	proxy := &httputil.ReverseProxy{
		Rewrite: rewrite, FlushInterval: -1, ErrorLog: silent,
		Transport: &http.Transport{
			DialContext: dialServer, DisableKeepAlives: true, DisableCompression: true,
			ExpectContinueTimeout: time.Second,
		},
		// The client sees what it would see without the relay: the end of its connection.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	r.server = &http.Server{
		ErrorLog: silent, DisableGeneralOptionsHandler: true,
		// A connection that is idle for so long ends; the first for one without a request.
		ReadHeaderTimeout: life, IdleTimeout: life,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, clientKey{}, c)
		},
		ConnState: func(c net.Conn, s http.ConnState) { c.(*kept).state(s) },
		// It adds nothing to the server's answer.
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header()["Date"], w.Header()["Content-Type"] = nil, nil
			c, _ := req.Context().Value(clientKey{}).(*kept)
			proxy.ServeHTTP(&announcer{w, func() bool { return r.ending.Load() && !c.pipelines.Load() }}, req)
		}),
	}
	return r
}

// announcer announces the end of the connection in an answer.
type announcer struct {
	http.ResponseWriter
	ends func() bool
}

// WriteHeader adds the announcement.
func (a *announcer) WriteHeader(code int) {
	if code >= http.StatusOK && a.ends() {
		a.Header().Set("Connection", "close")
	}
	a.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (a *announcer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// clientKey is the key of the client's connection in the context of a request.
type clientKey struct{}

// rewrite sends a request as it came to the address to which the client has connected.
func rewrite(p *httputil.ProxyRequest) {
	local, _ := p.In.Context().Value(http.LocalAddrContextKey).(net.Addr)
	p.Out.URL = &url.URL{Scheme: "http", Opaque: p.In.RequestURI}
	if strings.HasPrefix(p.In.RequestURI, "//") { // else the package would take it for a host
		*p.Out.URL = *p.In.URL
		p.Out.URL.Scheme = "http"
	}
	if local != nil {
		p.Out.URL.Host = local.String()
	}
	p.Out.Trailer = p.In.Trailer // it is filled at the end of the body
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = v
		}
	}
}

// dialServer connects to the server from the client's own address if that is one of this
// host, otherwise from an address of this host.
func dialServer(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	var d net.Dialer
	if c, ok := ctx.Value(clientKey{}).(*kept); ok {
		from := c.RemoteAddr().(*net.TCPAddr)
		if a, ok := netip.AddrFromSlice(from.IP); ok && isLocal(a.Unmap()) {
			d.LocalAddr = &net.TCPAddr{IP: from.IP, Zone: from.Zone}
		}
	}
	return d.DialContext(ctx, network, addr)
}

// run serves the connections until all have ended. After life it ends each with its next
// answer. A client that sends further requests before that answer keeps its connection until
// it is idle, or until longest. A signal ends idle connections at once, and others with the
// answer to their request or after stopLimit.
func (r *relay) run(orphans []*conn, stop <-chan os.Signal) {
	go func() { _ = r.server.Serve(r) }() // until ended
	for _, o := range orphans {
		if c, err := r.adopt(o); err == nil {
			r.accepts <- c
		}
	}
	go func() { r.open.Wait(); close(r.ended) }()
	defer r.server.Close()
	life, late := time.NewTimer(r.life), time.NewTimer(r.life+longest)
	defer life.Stop()
	defer late.Stop()
	for {
		select {
		case <-r.ended:
			return
		case <-life.C:
			r.ending.Store(true)
		case <-late.C:
			return
		case <-stop:
			ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
			defer cancel()
			_ = r.server.Shutdown(ctx) // it returns ctx's error
			return
		}
	}
}

// adopt makes a net.Conn of a copy.
func (r *relay) adopt(o *conn) (net.Conn, error) {
	f := os.NewFile(uintptr(o.fd), "kept connection")
	defer f.Close()
	if err := unix.SetNonblock(o.fd, true); err != nil {
		return nil, err
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	r.open.Add(1)
	return &kept{TCPConn: c.(*net.TCPConn), done: r.open.Done}, nil
}

// Accept, Close and Addr make relay the net.Listener of its server.
func (r *relay) Accept() (net.Conn, error) {
	select {
	case c := <-r.accepts:
		return c, nil
	case <-r.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (r *relay) Close() error {
	r.closing.Do(func() { close(r.closed) })
	return nil
}

// Addr implements net.Listener.
func (r *relay) Addr() net.Addr { return &net.TCPAddr{} }

// kept is a client's connection.
type kept struct {
	*net.TCPConn
	done    func()
	begun   bool        // its first data was a request
	waiting atomic.Bool // nothing was read since the last answer
	answers atomic.Bool // the answer to the last request has begun
	// pipelines reports whether the client has sent a request before it had the answer to
	// the one before.
	pipelines atomic.Bool
	closing   sync.Once
}

// Read ends the connection if its first data is no request: the old server spoke another
// protocol on it, such as WebSocket.
func (k *kept) Read(b []byte) (int, error) {
	n, err := k.TCPConn.Read(b)
	if n == 0 {
		return n, err
	}
	if !k.begun && !beginsRequest(b[:n]) {
		return 0, io.EOF
	}
	k.begun = true
	k.waiting.Store(false)
	// Package http reads one byte while a request is answered (connReader.backgroundRead).
	if len(b) == 1 && !k.answers.Load() {
		k.pipelines.Store(true)
	}
	return n, err
}

// Write notes that an answer begins.
func (k *kept) Write(b []byte) (int, error) {
	k.answers.Store(true)
	return k.TCPConn.Write(b)
}

// state follows the states of package http: a request that begins without a read since the
// last answer had been read with the one before.
func (k *kept) state(s http.ConnState) {
	switch s {
	case http.StateIdle:
		k.waiting.Store(true)
	case http.StateActive:
		k.answers.Store(false)
		if k.waiting.Load() {
			k.pipelines.Store(true)
		}
	}
}

// Close tells the client the end, and closes the socket later.
func (k *kept) Close() error {
	k.closing.Do(func() {
		_ = k.TCPConn.CloseWrite()
		_ = k.TCPConn.SetDeadline(time.Now()) // ends reads and writes
		time.AfterFunc(linger, func() {
			_ = k.TCPConn.Close()
			k.done()
		})
	})
	return nil
}
