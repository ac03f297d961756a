package e2b

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/keyfile"
	"holdfast/internal/platform/store"
)

// Template is what a sandbox may be made from.
type Template struct {
	Name   string
	Port   int
	Ports  holdfast.Ports // beside Port
	Pauses bool           // its sessions can be suspended
	Forks  bool           // its sessions can be copied
	CPUs   float64        // 0: no limit
	Memory int64          // bytes, 0: no limit
}

// Options are the settings of a Server.
type Options struct {
	Domain    string // with a port if it is not that of the scheme
	KeysFile  string // API keys, one in a line, as files of api.OpenTokens
	CertFile  string // with KeyFile: TLS and HTTP/2
	KeyFile   string
	User      string     // of commands and files that name none
	Templates []Template // at least one
	Agent     *client.Client
	Notes     store.Notes // of the sandboxes
	Metrics   *Metrics
	Node      string // this node's id
	// WebhookNetworks are the networks that events are posted to beside public addresses,
	// and without TLS.
	WebhookNetworks []netip.Prefix
	Log             *slog.Logger
}

// Server serves the SDKs. Call Run once; ServeHTTP is for tests.
type Server struct {
	o         Options
	keys      *api.Tokens
	tls       *tls.Config // nil: plain HTTP
	sandboxes *table
	inputs    *inputs
	watchers  *watchers
	events    chan event // to be written
	hooks     *hooks
	ports     *http.Transport
	control   http.Handler
	services  http.Handler
	life      context.Context // done when Run ends
	end       context.CancelFunc
}

// New reads the keys and the certificate. It starts nothing.
func New(o Options) (*Server, error) {
	keys, err := api.OpenTokens(api.TokenFiles{Admin: o.KeysFile}, o.Log)
	if err != nil {
		return nil, fmt.Errorf("e2b.api_keys_file: %w", err)
	}
	d := &Server{o: o, keys: keys, sandboxes: newTable(o.Notes), watchers: newWatchers(), events: make(chan event, eventQueue)}
	if len(o.Templates) == 0 {
		return nil, holdfast.WithHint(errors.New("e2b.listen: there is no template for sandboxes"), "add a template without replicas")
	}
	d.life, d.end = context.WithCancel(context.Background())
	d.inputs = newInputs(d.life, o.Agent)
	d.hooks = &hooks{life: d.life, notes: o.Notes, allowed: o.WebhookNetworks, pause: postPause, done: o.Metrics.posted, log: o.Log, waiting: map[string][]event{}}
	if o.CertFile != "" {
		if d.tls, err = keyfile.ServerTLS(o.Log, o.CertFile, o.KeyFile); err != nil {
			return nil, fmt.Errorf("e2b.cert_file: %w", err)
		}
	}
	d.ports = &http.Transport{DialContext: d.dialPort, MaxIdleConnsPerHost: idlePortConns, IdleConnTimeout: idlePortLimit, DisableCompression: true}
	d.control, d.services = d.controlRoutes(), d.serviceRoutes()
	return d, nil
}

// Run serves ln and ends sandboxes at their time, until ctx is done. Streams then end, and
// other requests have closeLimit. Run closes ln.
func (d *Server) Run(ctx context.Context, ln net.Listener) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer d.end()
	srv := &http.Server{
		Handler: d, TLSConfig: d.tls, ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(d.o.Log.Handler(), slog.LevelDebug), // of clients' connections
	}
	served := make(chan error, 1)
	go func() { served <- d.serve(srv, netutil.LimitListener(ln, maxConns)) }()
	var kept sync.WaitGroup
	kept.Go(func() { d.keep(base) })
	kept.Go(func() { d.record(base) })
	var err error
	select {
	case err = <-served:
		served <- nil
	case <-ctx.Done():
	}
	cancel()
	d.end()
	closing, stop := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer stop()
	if srv.Shutdown(closing) != nil {
		srv.Close()
	}
	err = errors.Join(err, <-served)
	kept.Wait()
	d.hooks.wg.Wait()
	d.inputs.wait()
	d.watchers.close()
	d.ports.CloseIdleConnections()
	d.o.Agent.Close()
	if err != nil {
		return fmt.Errorf("serving the SDKs of E2B on %v: %w", ln.Addr(), err)
	}
	return nil
}

func (d *Server) serve(srv *http.Server, ln net.Listener) error {
	var err error
	if d.tls != nil {
		err = srv.ServeTLS(ln, "", "")
	} else {
		err = srv.Serve(ln)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// The SDKs name a sandbox in these headers if they reach all of them at one address.
const (
	idHeader   = "E2b-Sandbox-Id"
	portHeader = "E2b-Sandbox-Port"
)

// ServeHTTP implements http.Handler.
func (d *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, port := d.target(r)
	switch {
	case id == "":
		d.control.ServeHTTP(d.o.Metrics.of("control", w), r)
	case port == envdPort:
		d.services.ServeHTTP(d.o.Metrics.of("sandbox", w), withID(r, id))
	default:
		d.servePort(d.o.Metrics.of("port", w), r, id, port)
	}
}

// target returns the sandbox and the port that a request is for, or "" for the control
// API. The headers count for the services only: a page cannot then choose its origin.
func (d *Server) target(r *http.Request) (id string, port int) {
	host, domain := hostOf(r.Host), hostOf(d.o.Domain)
	if label, ok := strings.CutSuffix(host, "."+domain); ok {
		if text, id, ok := strings.Cut(label, "-"); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= 65535 {
				return id, n
			}
		}
	}
	if id := r.Header.Get(idHeader); id != "" && r.Header.Get(portHeader) == strconv.Itoa(envdPort) {
		return id, envdPort
	}
	return "", 0
}

// hostOf returns a host without its port, in lower case.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(host)
}

// keep ends the sandboxes whose time is over, and follows the store.
func (d *Server) keep(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	var read time.Time
	for {
		if time.Since(read) >= readEvery {
			if err := d.reconcile(ctx); err != nil && ctx.Err() == nil {
				d.o.Log.Debug("reading the sandboxes", "err", err)
			}
			read = time.Now()
		}
		d.endDue(ctx)
		d.o.Metrics.sandboxes.Set(float64(d.sandboxes.count()))
		d.watchers.expire()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
