// Package gateway is the entry point of clients: HTTP and WebSockets for a
// session by path (/s/<key>/) or by host (<key>.<domain>). A request whose
// session is not ready is parked until it is, within limits, instead of being
// refused.
//
// The gateway is an origin of its own. The content of sessions is not trusted:
// it shares no cookie, login or listener with the API. A session never sees the
// connect token of a request.
package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/platform/keyfile"
	"holdfast/internal/sessions/gateway/reattach"
	"holdfast/internal/sessions/gateway/relay"
	"holdfast/internal/sessions/gateway/token"
	"holdfast/internal/sessions/gateway/upstream"
)

// Sessions locates and boots sessions for the gateway. Its methods are called
// from many goroutines.
type Sessions interface {
	// Ready is Acquire for a session that is ready and never sleeps. It does not wait and
	// boots nothing. Without ok the session is left to Acquire.
	Ready(key holdfast.SessionKey) (r holdfast.Route, release func(), ok bool)

	// Acquire returns where key is served and boots the session if no node serves
	// it. boot is called before a boot begins, and its error is returned; it does not
	// block. With nil every boot is allowed. If the session sleeps or is suspended, it
	// continues for the reason of ctx (holdfast.WithWakeReason). The session is not
	// stopped for idleness until release is called (exactly once). Acquire blocks until the session is ready or ctx is done;
	// for a ready session it returns at once. When r.Left is closed, requests in
	// progress to another node are cut off after closing.LeftWait, so r.Left must stay
	// open while that node still serves r.Epoch. Errors: *holdfast.BootError,
	// holdfast.ErrNotFound, ErrDraining, ErrBusy, ErrStore, ErrEngine, or that of
	// ctx.
	Acquire(ctx context.Context, key holdfast.SessionKey, boot func() error) (r holdfast.Route, release func(), err error)

	// Refused reports that r was unreachable before any byte was sent, or that
	// the connection ended because the session left the node. The next Acquire
	// for key bypasses the cache.
	Refused(key holdfast.SessionKey, r holdfast.Route)

	// AwaitResume waits while the session, which left at that epoch, is suspended or is being
	// suspended. It returns where the session is ready, or a route without an epoch if no
	// node has it. The error is that of ctx.
	AwaitResume(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (holdfast.Route, error)
}

// Gateway serves clients, and the requests that other nodes forward. Call only
// Run, Finish, Export, Import, LastAnswer, PeerForwardHandler, InFlight and ServeHTTP.
type Gateway struct {
	cfg         Config
	sessions    Sessions
	peers       Peers // nil: no other nodes
	metrics     *Metrics
	log         *slog.Logger
	tls         *tls.Config     // nil: plain HTTP
	tokens      *token.Verifier // nil: no token is required
	parking     *parking
	boots       *boots
	slots       *slots
	handlers    *handlers
	relay       *relay.Relay
	streams     *relay.Relay // of TCP addresses; it ends later
	reattach    reattach.Proxy
	resumeWaits *resumeWaits
	up          chan struct{} // closed when relay and reattach accept upgraded connections
	exports     exports
	finishing   atomic.Bool // see Finish
	stopping    atomic.Bool // Run ends
	upgraded    atomic.Int64
	dialTCP     func(ctx context.Context, network, addr string) (net.Conn, error)
	pool        *upstream.Pool  // to sessions' servers
	nodes       *http.Transport // to other nodes
	buffers     *bufferPool
	cut         context.Context // ends forwarded requests; done by cutNow
	cutNow      context.CancelFunc
}

// New returns a gateway. It loads the certificate and the secrets of connect
// tokens and starts nothing. If peers is nil, a route to another node is an
// error.
func New(cfg Config, s Sessions, peers Peers, m *Metrics, log *slog.Logger) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	g := &Gateway{
		cfg: cfg, sessions: s, peers: peers, metrics: m, log: log,
		parking:     newParking(cfg.ParkPerKey, cfg.ParkTotal, m),
		boots:       newBoots(cfg.BootsPerClient),
		slots:       newSlots(cfg.MaxRequestsPerClient, cmp.Or(cfg.MaxRequests, cfg.MaxConnections)),
		handlers:    newHandlers(),
		up:          make(chan struct{}),
		exports:     exports{log: log},
		resumeWaits: newResumeWaits(s, m),
		relay:       relay.New(loops()),
		streams:     relay.New(1),
		buffers:     &bufferPool{},
		dialTCP:     new(net.Dialer).DialContext,
	}
	if err := g.openTokens(); err != nil {
		return nil, err
	}
	if cfg.CertFile != "" {
		var err error
		if g.tls, err = keyfile.ServerTLS(log, cfg.CertFile, cfg.KeyFile); err != nil {
			return nil, holdfast.WithHint(fmt.Errorf("gateway: certificate: %w", err),
				"gateway.cert_file and gateway.key_file must be a PEM certificate chain and its key")
		}
	}
	g.cut, g.cutNow = context.WithCancel(context.Background())
	g.pool = upstream.New(upstream.Config{
		IdlePerKey: idlePerSession, IdleTotal: idleSessions, IdleTime: idleTime,
		ResponseTimeout: cfg.ResponseTimeout, ContinueTimeout: time.Second, MaxHeaderBytes: cfg.MaxHeaderBytes,
	})
	g.nodes = g.newNodePool()
	return g, nil
}

// Run serves ln and the TCP addresses until ctx is done. Then it accepts no more requests,
// answers parked ones with 503, gives the others and the connections to TCP addresses
// StopTimeout to finish, and closes upgraded connections (WebSockets with 1012). It returns
// when all its goroutines have ended. The listeners are closed in every case. Run may be
// called once.
func (g *Gateway) Run(ctx context.Context, ln net.Listener, tcp ...TCPAddress) error {
	// Requests and upgraded connections outlive ctx, bounded by stop.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	relayCtx, stopRelay := context.WithCancel(base)
	defer stopRelay()

	if err := errors.Join(g.reattach.Open(relayCtx), g.relay.Open(), g.streams.Open()); err != nil {
		ln.Close()
		closeAll(tcp)
		return fmt.Errorf("gateway: %w", err)
	}
	close(g.up)
	stopTCP := g.startTCP(base, tcp)
	relayEnd := make(chan error, 1)
	go func() { relayEnd <- g.relay.Run(relayCtx) }()

	srv := g.server(base)
	front := newFront(g, newLimitListener(ln, g.cfg.MaxConnections))
	serveEnd := front.start(base, srv)

	var failed error
	select {
	case <-ctx.Done():
	case failed = <-serveEnd: // before ctx: the listener broke
		serveEnd <- nil
	case failed = <-relayEnd:
		relayEnd <- nil
	}
	closeAll(tcp)
	g.stop(front, srv, cancel, stopRelay)
	failed = errors.Join(failed, stopTCP(), <-serveEnd, <-relayEnd)
	g.reattach.Close()
	g.pool.Close()
	g.nodes.CloseIdleConnections()
	if failed != nil {
		return fmt.Errorf("gateway: %w", failed)
	}
	return nil
}

// stop ends the requests, the server and the upgraded connections, in parallel
// where they are independent. After StopTimeout, cancel ends the remaining
// requests.
func (g *Gateway) stop(front *front, srv *http.Server, cancel, stopRelay context.CancelFunc) {
	g.stopping.Store(true)
	g.parking.close()
	stopRelay()
	defer time.AfterFunc(g.cfg.StopTimeout, g.cutNow).Stop()
	bound, done := context.WithTimeout(context.Background(), g.cfg.StopTimeout)
	defer done()
	front.shutdown(bound)
	if err := srv.Shutdown(bound); err != nil {
		g.log.Warn("requests were cut off at the end of the stop timeout", "err", err)
		cancel()
		srv.Close()
	}
	g.handlers.close() // not before: a request that had arrived is served
	g.handlers.wait()
}

// InFlight returns how many requests wait for their session, how many other
// requests are in progress, and how many upgraded connections are open.
// Requests that other nodes forward are included. Any goroutine may call it.
func (g *Gateway) InFlight() (parked, requests, upgraded int) {
	parked = int(g.parking.parked.Load())
	return parked, max(0, g.handlers.count()-parked), int(g.upgraded.Load())
}

func (g *Gateway) server(base context.Context) *http.Server {
	return &http.Server{
		Handler:           g,
		ReadHeaderTimeout: g.cfg.HeaderTimeout,
		IdleTimeout:       g.cfg.IdleTimeout,
		MaxHeaderBytes:    g.cfg.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       withConn,
		HTTP2: &http.HTTP2Config{
			// A client that accepts no bytes of its connection blocks all of its streams.
			WriteByteTimeout: g.cfg.WriteTimeout,
			// The least that is allowed, and what clients use. The client of a frame that
			// is too large can send it, and receives the error (RFC 9113, 4.2).
			MaxReadFrameSize: 16 << 10,
		},
	}
}
