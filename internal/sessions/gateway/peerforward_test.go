package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
)

// A forwarded request and its response are the same as without a forward. Neither a
// client nor a session can send the headers between gateways.
func TestForwardedRequest(t *testing.T) {
	f := newFleet(t)
	type seen struct {
		URI, Host string
		Header    http.Header
	}
	got := make(chan seen, 1)
	owner := f.join("owner", func(w http.ResponseWriter, r *http.Request) {
		got <- seen{r.RequestURI, r.Host, r.Header}
		h := w.Header()
		h.Set("Location", "/login")
		h.Set("Set-Cookie", "a=b; Path=/; Domain=example.org")
		h.Set("X-Holdfast-Refused", "hold")
		h.Set("X-Holdfast-Failed", "left")
		h["x_holdfast_failed"] = []string{"left"}
		w.WriteHeader(http.StatusMisdirectedRequest)
		io.WriteString(w, "mine")
	}, nil)
	first := f.join("first", nil, nil)
	first.leadTo(owner)
	for range 2 { // the second one uses the connection of the first
		req := first.request("GET", "/s/alice/a%2Fb//c?x=1;y", nil, "Cookie", "c=d", "User-Agent", "",
			"X-Holdfast-Session", "bob", "X-Holdfast-Epoch", "9", "X_Holdfast_Epoch", "9", "x_forwarded_for", "6.6.6.6",
			"X_Real_Ip", "6.6.6.6", "X-Forwarded-Port", "1", "Accept-Encoding", "br")
		req.Host = "gw.test"
		resp, body := first.do(req)
		want := seen{"/a%2Fb//c?x=1;y", "gw.test", http.Header{
			"Cookie": {"c=d"}, "Accept-Encoding": {"br"}, "X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"gw.test"},
			"X-Forwarded-Proto": {"http"}, "X-Forwarded-Prefix": {"/s/alice"},
		}}
		if diff := cmp.Diff(want, <-got); diff != "" {
			t.Error(diff)
		}
		h := resp.Header
		if resp.StatusCode != 421 || body != "mine" || h.Get("Location") != "/s/alice/login" || h.Get("Set-Cookie") != "a=b; Path=/s/alice/" {
			t.Errorf("%s %q %v", resp.Status, body, h)
		}
		for name := range h {
			if begins(name, reservedPrefix) {
				t.Errorf("the client received %s", name)
			}
		}
	}
	if n := owner.line.count(); n != 1 {
		t.Errorf("%d connections between the nodes for two requests", n)
	}
	if n := valueOf(t, first.gateway.metrics.forwarded.WithLabelValues("answered")); n != 2 {
		t.Errorf("%v counted", n)
	}
}

// All sessions share the connections between two nodes.
func TestSessionsShareConnections(t *testing.T) {
	f := newFleet(t)
	owner := f.join("owner", echoBody("owner"), nil)
	first := f.join("first", nil, nil)
	first.leadTo(owner)
	for i := range 10 {
		if resp, _ := first.get(fmt.Sprintf("/s/s%d/", i)); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
	}
	if n := owner.line.count(); n != 1 {
		t.Errorf("%d connections for ten sessions", n)
	}
}

// A node refuses before it receives the body, so only the owner receives it, once.
func TestRefusedBodyIsServedElsewhere(t *testing.T) {
	text := make([]byte, 8<<20)
	rand.Read(text)
	cert, key := certificate(t)
	for name, change := range map[string]func(*Config){
		"HTTP/1.1": nil,
		"HTTP/2":   func(c *Config) { c.CertFile, c.KeyFile = cert, key },
	} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s chunked=%v", name, chunked), func(t *testing.T) {
				f := newFleet(t)
				stale, owner := f.join("stale", nil, nil), f.join("owner", echoBody("owner"), nil)
				noServer := f.join("no-server", echoBody("unknown"), nil)
				noServer.local.address = closedPort(t)
				first := f.join("first", nil, change)
				first.leadTo(stale, noServer, owner)
				var r io.Reader = bytes.NewReader(text)
				if chunked {
					r = io.MultiReader(r)
				}
				req := first.request("POST", "/s/alice/", r)
				if change != nil {
					req.URL.Scheme = "https"
					first.client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
				}
				resp, got := first.do(req)
				if resp.StatusCode != 200 || got != string(text) || resp.Header.Get("Served-By") != "owner" || (resp.ProtoMajor == 2) != (change != nil) {
					t.Errorf("%s %s: %d bytes", resp.Proto, resp.Status, len(got))
				}
				if n := first.refusals(); n != 2 {
					t.Errorf("%d refusals", n)
				}
				for _, m := range []*member{stale, noServer} {
					if n := m.line.read.Load(); n == 0 || n > 64<<10 {
						t.Errorf("%s received %d bytes", m.id, n)
					}
				}
				if n := owner.line.read.Load(); n > int64(len(text))*5/4 {
					t.Errorf("the owner received %d bytes", n)
				}
			})
		}
	}
}

// The 100 Continue between gateways reaches only a client that asked for it.
func TestContinueStaysBetweenGateways(t *testing.T) {
	f := newFleet(t)
	owner := f.join("owner", echoBody("owner"), nil)
	first := f.join("first", nil, nil)
	first.leadTo(owner)
	_, br, resp := first.raw("POST /s/alice/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
	if b, err := io.ReadAll(io.LimitReader(resp.Body, 4)); resp.StatusCode != 200 || string(b) != "body" {
		t.Errorf("%s %q %v", resp.Status, b, err)
	}
	_ = br
	c, br, resp := first.raw("POST /s/alice/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
	if resp.StatusCode != 100 {
		t.Fatalf("a client that asks: %s", resp.Status)
	}
	io.WriteString(c, "body")
	if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("%v %v", resp, err)
	}
}

// A forwarded request is served or refused by the node that receives it.
func TestNeverForwardedTwice(t *testing.T) {
	f := newFleet(t)
	second := f.join("second", nil, nil) // it has no session, and its Sessions fails the request
	third := f.join("third", echoBody("third"), nil)
	second.leadTo(third)
	first := f.join("first", nil, nil)
	first.leadTo(second, second, third)
	if resp, _ := first.get("/s/alice/"); resp.Header.Get("Served-By") != "third" {
		t.Error(resp.Status)
	}
	if asked, _ := second.local.count(); asked != 2 || first.refusals() != 2 {
		t.Errorf("%d requests, %d refusals", asked, first.refusals())
	}
	if asked, _ := third.local.count(); asked != 1 {
		t.Errorf("the third node received %d requests", asked)
	}
	if n := valueOf(t, second.gateway.metrics.peerForwardRefusals.WithLabelValues(refusedHold)); n != 2 {
		t.Errorf("%v refusals counted", n)
	}
}

func TestPeerListenerTakesOnlyForwardedRequests(t *testing.T) {
	f := newFleet(t)
	owner := f.join("owner", echoBody("owner"), nil)
	dial := func() net.Conn {
		c, err := peers{f.identity("any")}.Dial(t.Context(), "owner", owner.peerAddr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for head, want := range map[string]int{
		"X-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 1\r\n":                         200,
		"X-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 2\r\n":                         421,
		"X-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 01\r\n":                        400,
		"X-Holdfast-Session: alice\r\nX-Holdfast-Epoch: -1\r\n":                        400,
		"X-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 99999999999999999999\r\n":      400,
		"X-Holdfast-Session: Alice\r\nX-Holdfast-Epoch: 1\r\n":                         400,
		"X-Holdfast-Session: alice\r\n":                                                400,
		"X-Holdfast-Epoch: 1\r\n":                                                      400,
		"X-Holdfast-Session: a\r\nX-Holdfast-Session: b\r\nX-Holdfast-Epoch: 1\r\n":    400,
		"X-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 1\r\nX-Holdfast-Epoch: 1\r\n":  400,
		"X_Holdfast_Session: alice\r\nX-Holdfast-Epoch: 1\r\n":                         400,
		"X-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 2\r\nContent-Length: 1000\r\n": 421,
	} {
		c := dial()
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", head)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != want || (resp.Header.Get("X-Holdfast-Refused") != "") != (want == 421) {
			t.Errorf("%q: %v %v", head, resp, err)
		}
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Holdfast-Session", "alice")
	r.Header.Set("X-Holdfast-Epoch", "1")
	if owner.gateway.PeerForwardHandler(owner.local).ServeHTTP(w, r); w.Code != 403 {
		t.Errorf("without a certificate: %d", w.Code)
	}
}

// The peer listener may be open before the gateway can relay. Requests are then refused,
// and the other node tries again.
func TestPeerListenerRefusesBeforeRun(t *testing.T) {
	g, err := New(DefaultConfig(), &fakeSessions{}, nil, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	local := &fakeLocal{address: closedPort(t)}
	r := httptest.NewRequest("GET", "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	r.Header.Set("X-Holdfast-Session", "alice")
	r.Header.Set("X-Holdfast-Epoch", "1")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "any")
	w := httptest.NewRecorder()
	g.PeerForwardHandler(local).ServeHTTP(w, r)
	if why := w.Header().Get("X-Holdfast-Refused"); w.Code != 421 || why != refusedStopping {
		t.Errorf("%d, refused for %q", w.Code, why)
	}
	if asked, _ := local.count(); asked != 0 {
		t.Errorf("the sessions received %d requests", asked)
	}
}

// Another node may have the address of a record.
func TestWrongNodeIsRefused(t *testing.T) {
	f := newFleet(t)
	other, owner := f.join("other", echoBody("other"), nil), f.join("owner", echoBody("owner"), nil)
	first := f.join("first", nil, nil)
	for _, header := range [][]string{nil, {"Connection", "Upgrade", "Upgrade", "any"}} {
		calls := 0
		first.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
			r := owner.route(key, nil)
			if calls++; calls == 1 {
				r.Address = other.peerAddr
			}
			return r, nil
		})
		resp, _ := first.get("/s/alice/", header...)
		if resp.StatusCode != 200 || resp.Header.Get("Served-By") != "owner" || calls != 2 {
			t.Errorf("%v: %s by %q, %d calls", header, resp.Status, resp.Header.Get("Served-By"), calls)
		}
	}
	if asked, _ := other.local.count(); asked != 0 {
		t.Errorf("the wrong node received %d requests", asked)
	}
}

// A node without fleet certificates returns an error at once.
func TestWithoutPeers(t *testing.T) {
	f := start(t, nil, nil)
	f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		return holdfast.Route{Key: key, Node: "elsewhere", Address: "127.0.0.1:1", Epoch: 1}, nil
	})
	if resp, body := f.get("/s/alice/"); resp.StatusCode != 502 || !strings.Contains(body, "in no fleet") {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestForwardedWebSocket(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string, change func(*Config)) {
		f := newFleet(t)
		owner := f.join("owner", echoSocket, nil)
		first := f.join("first", nil, change)
		first.leadTo(owner)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				c := first.webSocket(scheme, &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover})
				for _, n := range []int{0, 1, 125, 126, 16384, 65536, 1 << 20} {
					exchange(t, c, n)
				}
				if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// Bytes after the handshake, and a half close, pass through two relays.
func TestForwardedEarlyDataAndHalfClose(t *testing.T) {
	f := newFleet(t)
	owner := f.join("owner", echoBody(""), nil)
	owner.local.address = switcher(t, func(c *net.TCPConn, br *bufio.Reader) {
		got, _ := io.ReadAll(br) // until the client's half close
		io.WriteString(c, "read: "+string(got))
	})
	first := f.join("first", nil, nil)
	first.leadTo(owner)
	c, br, resp := first.raw(askUpgrade + "early from client,")
	if resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "chat" {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	io.WriteString(c, "late from client")
	c.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(br)
	if want := "early from server,read: early from client,late from client"; string(got) != want || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// The gateway that first learns that the session leaves sends 1012, once.
func TestForwardedSessionLeaves(t *testing.T) {
	for name, leave := range map[string]func(first, owner *member){
		"owner hears": func(_, owner *member) { close(owner.local.left) },
		"first hears": func(first, _ *member) { close(first.left) },
		"both hear":   func(first, owner *member) { close(owner.local.left); close(first.left) },
		"first hears of a silent owner": func(first, owner *member) {
			owner.line.cut()
			close(first.left)
		},
		"owner stops": func(_, owner *member) { owner.stop() },
		"first stops": func(first, _ *member) { first.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			eachScheme(t, func(t *testing.T, scheme string, change func(*Config)) {
				f := newFleet(t)
				owner := f.join("owner", echoSocket, nil)
				first := f.join("first", nil, change)
				first.leadTo(owner)
				var wire *tap
				first.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
					wire = &tap{Conn: c}
					return wire, err
				}
				c := first.webSocket(scheme, nil)
				exchange(t, c, 100)
				before := wire.read.Load()
				leave(first, owner)
				expectRestart(t, c)
				if n := wire.read.Load() - before; scheme == "ws" && n != int64(len("\x88\x02\x03\xf4")) {
					t.Errorf("%d bytes at the end, a Close frame has 4", n)
				}
				if _, err := io.Copy(io.Discard, wire); err != nil && !errors.Is(err, net.ErrClosed) {
					t.Log("the end:", err)
				}
			})
		})
	}
}

// tap counts the bytes that a client reads.
type tap struct {
	net.Conn
	read atomic.Int64
}

func (c *tap) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}
