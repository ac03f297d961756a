package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"holdfast"

	"holdfast/internal/sessions/gateway/closing"
	"holdfast/test/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is a deadline against hanging, not an expectation.
const patience = time.Minute

// fakeSessions returns the configured answers, and counts the held sessions.
type fakeSessions struct {
	mu      sync.Mutex
	acquire func(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, error)
	// ready is Ready; nil: every session is left to Acquire.
	ready   func(key holdfast.SessionKey) (holdfast.Route, bool)
	held    int
	refused []holdfast.Route
	waiting int // calls of Acquire that have not returned
	// cold are the sessions that have to boot first; boots counts those that did.
	cold  map[holdfast.SessionKey]bool
	boots int
	// suspended is AwaitResume; nil: no session is suspended.
	suspended func(ctx context.Context, epoch holdfast.Epoch) (holdfast.Route, error)
	awaits    int // calls of AwaitResume
}

func (f *fakeSessions) AwaitResume(ctx context.Context, _ holdfast.SessionKey, epoch holdfast.Epoch) (holdfast.Route, error) {
	f.mu.Lock()
	f.awaits++
	wait := f.suspended
	f.mu.Unlock()
	if wait == nil {
		return holdfast.Route{}, ctx.Err()
	}
	return wait(ctx, epoch)
}

func (f *fakeSessions) Ready(key holdfast.SessionKey) (holdfast.Route, func(), bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ready == nil {
		return holdfast.Route{}, nil, false
	}
	r, ok := f.ready(key)
	if !ok {
		return r, nil, false
	}
	return r, f.holdLocked(), true
}

// holdLocked counts a held session, and returns its release.
func (f *fakeSessions) holdLocked() (release func()) {
	f.held++
	once := false
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if once {
			panic("released twice")
		}
		once = true
		f.held--
	}
}

func (f *fakeSessions) Acquire(ctx context.Context, key holdfast.SessionKey, boot func() error) (holdfast.Route, func(), error) {
	if err := f.warmUp(key, boot); err != nil {
		return holdfast.Route{}, nil, err
	}
	f.mu.Lock()
	f.waiting++
	acquire := f.acquire
	f.mu.Unlock()
	r, err := acquire(ctx, key)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting--
	if err != nil {
		return r, nil, err
	}
	return r, f.holdLocked(), nil
}

// warmUp boots a cold session, if it may.
func (f *fakeSessions) warmUp(key holdfast.SessionKey, boot func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.cold[key] {
		return nil
	}
	if boot != nil {
		if err := boot(); err != nil {
			return err
		}
	}
	delete(f.cold, key)
	f.boots++
	return nil
}

// cool makes sessions boot at their next Acquire.
func (f *fakeSessions) cool(keys ...holdfast.SessionKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cold = map[holdfast.SessionKey]bool{}
	for _, k := range keys {
		f.cold[k] = true
	}
}

func (f *fakeSessions) Refused(_ holdfast.SessionKey, r holdfast.Route) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = append(f.refused, r)
}

func (f *fakeSessions) set(acquire func(context.Context, holdfast.SessionKey) (holdfast.Route, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acquire, f.ready = acquire, nil
}

func (f *fakeSessions) count() (held, waiting int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held, f.waiting
}

// fixture is a running gateway in front of one session's server.
type fixture struct {
	t        *testing.T
	sessions *fakeSessions
	gateway  *Gateway
	addr     string
	tcp      string // the TCP address of session alice
	left     chan struct{}
	client   *http.Client // follows no redirects
	stop     func()       // ends Run and waits for it
}

// start runs a gateway. handler is the server of every session; nil means no server.
func start(t *testing.T, handler http.HandlerFunc, change func(*Config)) *fixture {
	t.Helper()
	return startWith(t, handler, nil, change)
}

func startWith(t *testing.T, handler http.HandlerFunc, peers Peers, change func(*Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, sessions: &fakeSessions{}, left: make(chan struct{})}
	if handler != nil {
		srv := httptest.NewServer(handler)
		t.Cleanup(srv.Close)
		f.serveAt(srv.Listener.Addr().String())
	}
	cfg := DefaultConfig()
	cfg.Hosts = []string{"*"} // tests use any name; TestOnlyKnownNamesAreServed tests the check
	if change != nil {
		change(&cfg)
	}
	g, err := New(cfg, f.sessions, peers, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f.gateway = g
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr, f.tcp = ln.Addr().String(), tcp.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- g.Run(ctx, ln, TCPAddress{Listener: tcp, Key: "alice"}) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-end:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not return")
		}
		if held, waiting := f.sessions.count(); held != 0 || waiting != 0 {
			t.Errorf("after Run %d sessions are held, %d Acquires wait", held, waiting)
		}
	})
	t.Cleanup(f.stop)
	poll.Until(t, "the gateway is up", func() bool { return closing.Closed(g.up) })
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	f.client = &http.Client{Transport: tr, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return f
}

// serveAt makes every session ready at address.
func (f *fixture) serveAt(address string) {
	route := func(key holdfast.SessionKey) holdfast.Route {
		return holdfast.Route{Key: key, Address: address, Epoch: 1, Left: f.left, Upgrades: []string{"chat"}}
	}
	f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) { return route(key), nil })
	f.sessions.mu.Lock()
	defer f.sessions.mu.Unlock()
	f.sessions.ready = func(key holdfast.SessionKey) (holdfast.Route, bool) { return route(key), !f.sessions.cold[key] }
}

// failWith makes every Acquire fail.
func (f *fixture) failWith(err error) {
	f.sessions.set(func(context.Context, holdfast.SessionKey) (holdfast.Route, error) { return holdfast.Route{}, err })
}

// park makes every Acquire wait until its context is done.
func (f *fixture) park() {
	f.sessions.set(func(ctx context.Context, _ holdfast.SessionKey) (holdfast.Route, error) {
		<-ctx.Done()
		return holdfast.Route{}, ctx.Err()
	})
}

func (f *fixture) request(method, path string, body io.Reader, header ...string) *http.Request {
	f.t.Helper()
	req, err := http.NewRequest(method, "http://"+f.addr+path, body)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

// do sends the request and reads the whole response.
func (f *fixture) do(req *http.Request) (*http.Response, string) {
	f.t.Helper()
	resp, err := f.client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp, string(b)
}

func (f *fixture) get(path string, header ...string) (*http.Response, string) {
	f.t.Helper()
	return f.do(f.request("GET", path, nil, header...))
}

// dial opens a raw connection to the gateway.
func (f *fixture) dial() net.Conn {
	f.t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	f.t.Cleanup(func() { c.Close() })
	return c
}

// raw sends bytes and returns the connection and the response's head.
func (f *fixture) raw(request string) (net.Conn, *bufio.Reader, *http.Response) {
	f.t.Helper()
	c := f.dial()
	io.WriteString(c, request)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return c, br, resp
}

func TestRoutesByPath(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s host=%s", r.Method, r.RequestURI, r.Host)
	}, nil)
	for path, want := range map[string]string{
		"/s/alice/":              "/",
		"/s/alice/a/b?c=d;e&f=%": "/a/b?c=d;e&f=%",
		"/s/alice//x/../y":       "//x/../y",
		"/s/alice/%2e%2e/%2Fs":   "/%2e%2e/%2Fs",
		"/s/alice/s/bob/":        "/s/bob/",
	} {
		c, br, resp := f.raw("GET " + path + " HTTP/1.1\r\nHost: gw.test\r\nConnection: close\r\n\r\n")
		b, _ := io.ReadAll(resp.Body)
		if got := string(b); got != "GET "+want+" host=gw.test" {
			t.Errorf("%s: got %q", path, got)
		}
		_ = br
		c.Close()
	}
}

func TestRoutesByHost(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s prefix=%q", r.RequestURI, r.Header.Get("X-Forwarded-Prefix"))
	}, func(c *Config) { c.Domain, c.Paths = "sessions.test", true })
	for host, want := range map[string]string{
		"alice.sessions.test":      `/s/bob/x prefix=""`,
		"ALICE.Sessions.test.:443": `/s/bob/x prefix=""`,
		"sessions.test":            `/x prefix="/s/bob"`,
		"elsewhere.test":           `/x prefix="/s/bob"`,
	} {
		req := f.request("GET", "/s/bob/x", nil)
		req.Host = host
		if _, got := f.do(req); got != want {
			t.Errorf("%s: got %q, want %q", host, got, want)
		}
	}
	req := f.request("GET", "/", nil)
	req.Host = "a.b.sessions.test"
	if resp, _ := f.do(req); resp.StatusCode != 400 {
		t.Errorf("two labels: %s", resp.Status)
	}
}

func TestAnswersBadRequestsItself(t *testing.T) {
	f := start(t, nil, nil)
	f.failWith(errors.New("must not be asked"))
	for _, c := range []struct {
		path   string
		status int
		body   string
	}{
		{"/", 404, "/s/<key>/"},
		{"/s", 404, "/s/<key>/"},
		{"/s/", 400, "it is empty"},
		{"/s/Alice/", 400, "a key has 1 to 63"},
		{"/s/a_b", 400, "not a session key"},
		{"/s/%61lice/", 400, "not a session key"},
		{"/s/..%2fbob/", 400, "not a session key"},
		{"/s/" + strings.Repeat("a", 64) + "/", 400, "it has 64 bytes"},
	} {
		resp, body := f.get(c.path)
		if resp.StatusCode != c.status || !strings.Contains(body, c.body) {
			t.Errorf("%s: %d %q", c.path, resp.StatusCode, body)
		}
		if resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: sets a cookie", c.path)
		}
	}
	resp, _ := f.get("/s/alice?x=1")
	if resp.StatusCode != 308 || resp.Header.Get("Location") != "/s/alice/?x=1" {
		t.Errorf("without a slash: %d to %q", resp.StatusCode, resp.Header.Get("Location"))
	}
}

func TestExplainsErrors(t *testing.T) {
	boot := &holdfast.BootError{Key: "alice", Phase: "start", Err: errors.New("exit 1"), Log: "<script>alert(1)</script>"}
	for _, c := range []struct {
		err    error
		status int
		reason string
		retry  bool
	}{
		{boot, 502, "boot", false},
		{fmt.Errorf("x: %w", holdfast.ErrNotFound), 404, "not_found", false},
		{fmt.Errorf("x: %w", holdfast.ErrDraining), 503, "draining", true},
		{&holdfast.ElsewhereError{Owner: holdfast.Owner{Key: "alice", Node: "other"}}, 503, "elsewhere", true},
		{fmt.Errorf("x: %w", holdfast.ErrBusy), 503, "busy", true},
		{fmt.Errorf("x: %w", holdfast.ErrStore), 503, "store", true},
		{fmt.Errorf("x: %w", holdfast.ErrEngine), 503, "engine", true},
		{errors.New("unknown"), 502, "upstream", false},
	} {
		f := start(t, nil, nil)
		f.failWith(c.err)
		resp, body := f.get("/s/alice/", "Accept", "application/json")
		if resp.StatusCode != c.status || !strings.Contains(body, `"reason":"`+c.reason+`"`) || (resp.Header.Get("Retry-After") != "") != c.retry {
			t.Errorf("%v: %d %v %s", c.err, resp.StatusCode, resp.Header, body)
		}
		f.stop()
	}
	f := start(t, nil, nil)
	f.failWith(boot)
	if _, body := f.get("/s/alice/"); !strings.Contains(body, boot.Log) || !strings.Contains(body, "exit 1") {
		t.Errorf("text: %s", body)
	}
	resp, body := f.get("/s/alice/", "Accept", "text/html,*/*")
	if strings.Contains(body, "<script>") || !strings.Contains(body, "&lt;script&gt;") || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		t.Errorf("page: %s", body)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"cert_file":               func(c *Config) { c.CertFile = "x" },
		"domain":                  func(c *Config) { c.Domain = "Sessions.test" },
		"max_connections":         func(c *Config) { c.MaxConnections = 0 },
		"max_requests is":         func(c *Config) { c.MaxRequests = -1 },
		"max_requests_per_client": func(c *Config) { c.MaxRequestsPerClient = 0 },
		"body_timeout":            func(c *Config) { c.BodyTimeout = 0 },
		"write_timeout":           func(c *Config) { c.WriteTimeout = 0 },
		"boots_per_client":        func(c *Config) { c.BootsPerClient = -1 },
		"park_per_key":            func(c *Config) { c.ParkPerKey = 0 },
		"park_total":              func(c *Config) { c.ParkTotal = 0 },
		"park_time":               func(c *Config) { c.ParkTime = 0 },
		"max_header_bytes":        func(c *Config) { c.MaxHeaderBytes = 1 },
		"max_body_bytes":          func(c *Config) { c.MaxBodyBytes = -1 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := DefaultConfig()
	c.CertFile, c.KeyFile = "/nowhere.pem", "/nowhere.key"
	if _, err := New(c, nil, nil, nil, nil); err == nil || holdfast.HintOf(err) == "" {
		t.Errorf("missing certificate: %v", err)
	}
}

// valueOf returns the value of a gauge or counter.
func valueOf(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		t.Fatal(err)
	}
	return d.GetGauge().GetValue() + d.GetCounter().GetValue()
}
