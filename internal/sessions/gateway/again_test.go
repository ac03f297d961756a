package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/test/poll"
)

// asked is a server that blocks all requests until their end, except those for /warm.
type asked struct {
	n    atomic.Int64
	came chan struct{}
}

func (a *asked) hang(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/warm" {
		return
	}
	io.Copy(io.Discard, r.Body)
	a.n.Add(1)
	a.came <- struct{}{}
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// latePeers opens connections whose end is slow: after close_notify of TLS, the other
// gateway has time to answer.
type latePeers struct{ peers }

func (p latePeers) Dial(ctx context.Context, node holdfast.NodeID, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	t := tls.Client(lateClose{c}, p.identity.ClientTLS(node))
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

type lateClose struct{ net.Conn }

func (c lateClose) Close() error {
	time.Sleep(50 * time.Millisecond)
	return c.Conn.Close()
}

// If a node vanishes, its requests that may be sent twice are sent to another node. The
// others are answered with 503 and are not sent again.
func TestOwnerVanishes(t *testing.T) {
	for name, vanish := range map[string]func(owner *member, left chan struct{}){
		"with a reset": func(owner *member, _ chan struct{}) {
			owner.line.Close()
			owner.line.cut()
		},
		"without a word": func(_ *member, left chan struct{}) { close(left) },
	} {
		for _, c := range []struct {
			method, body, upgrade string
			status                int
		}{
			{"GET", "", "", 200},
			{"GET", "", "any", 200},
			{"POST", "once", "", 503},
			{"PATCH", "", "", 503},
			{"DELETE", "", "", 200},
			{"PUT", "the same", "", 200},
			{"PUT", strings.Repeat("x", 2*keptBody), "", 503},
		} {
			t.Run(fmt.Sprintf("%s %s%s of %d bytes", name, c.method, c.upgrade, len(c.body)), func(t *testing.T) {
				f := newFleet(t)
				hung := &asked{came: make(chan struct{}, 10)}
				owner, next := f.join("owner", hung.hang, nil), f.join("next", echoBody("next"), nil)
				first := f.join("first", nil, nil)
				first.gateway.peers = latePeers{peers{f.identity("first")}}
				first.leadTo(owner) // for a kept-alive connection
				if resp, _ := first.get("/s/alice/warm"); resp.StatusCode != 200 {
					t.Fatal(resp.Status)
				}
				left := make(chan struct{})
				first.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
					if first.refusals() == 0 {
						return owner.route(key, left), nil
					}
					return next.route(key, nil), nil
				})
				req := first.request(c.method, "/s/alice/", strings.NewReader(c.body))
				if c.body == "" {
					req.Body, req.ContentLength = nil, 0
				}
				if c.upgrade != "" {
					req.Header.Set("Connection", "Upgrade")
					req.Header.Set("Upgrade", c.upgrade)
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					<-hung.came
					vanish(owner, left)
				})
				resp, body := first.do(req)
				wg.Wait()
				if resp.StatusCode != c.status || (resp.Header.Get("Retry-After") != "") != (c.status == 503) {
					t.Error(resp.Status, resp.Header)
				}
				if c.status == 200 && c.body != "" && body != c.body {
					t.Errorf("the next node received %d bytes of %d", len(body), len(c.body))
				}
				if n, _ := next.local.count(); (n == 1) != (c.status == 200) || hung.n.Load() != 1 {
					t.Errorf("the owner received it %d times, the next node %d times", hung.n.Load(), n)
				}
			})
		}
	}
}

// The same if the node is available and the session's server is killed.
func TestServerIsKilledOnAnotherNode(t *testing.T) {
	f := newFleet(t)
	next := f.join("next", echoBody("next"), nil)
	for _, leaves := range []bool{true, false} {
		var seen atomic.Int64
		left := make(chan struct{})
		owner := f.join("owner", func(http.ResponseWriter, *http.Request) {
			if seen.Add(1); leaves {
				close(left)
			}
			panic(http.ErrAbortHandler)
		}, nil)
		owner.local.left = left
		first := f.join("first", nil, nil)
		first.leadTo(owner, next)
		resp, body := first.get("/s/alice/", "Accept", "application/json")
		if leaves && resp.Header.Get("Served-By") != "next" || !leaves && (resp.StatusCode != 502 || !strings.Contains(body, `"upstream"`)) {
			t.Errorf("leaves %v: %s %s", leaves, resp.Status, body)
		}
		if seen.Load() != 1 {
			t.Errorf("the owner's server received it %d times", seen.Load())
		}
	}
}

// killedBy is a server that reads a request, sends some bytes, and is killed.
func killedBy(t *testing.T, f func(n int64, c *net.TCPConn)) (address string, seen *atomic.Int64) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen = &atomic.Int64{}
	end := make(chan struct{})
	go func() {
		defer close(end)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				f(seen.Add(1), c.(*net.TCPConn))
			}
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-end })
	return ln.Addr().String(), seen
}

func TestServerIsKilledHere(t *testing.T) {
	for _, c := range []struct {
		name, request, says string
		stays               bool
		status              int
	}{
		{"GET", "GET /s/alice/ HTTP/1.1\r\nHost: x\r\n\r\n", "", false, 200},
		{"upgrade", askUpgrade, "", false, 200},
		{"that stays", "GET /s/alice/ HTTP/1.1\r\nHost: x\r\n\r\n", "", true, 502},
		{"POST", "POST /s/alice/ HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "", false, 503},
		{"PUT", "PUT /s/alice/ HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", "", false, 200},
		{"that had begun", "GET /s/alice/ HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 2", false, 502},
		{"that had begun an upgrade", askUpgrade, "HTTP/1.1 1", false, 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := start(t, nil, nil)
			left := make(chan struct{})
			bad, seen := killedBy(t, func(_ int64, conn *net.TCPConn) {
				io.WriteString(conn, c.says)
				if !c.stays {
					close(left)
				}
			})
			good := echoBodyServer(t)
			f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
				if closing.Closed(left) {
					return holdfast.Route{Key: key, Address: good, Epoch: 2}, nil
				}
				return holdfast.Route{Key: key, Address: bad, Epoch: 1, Left: left}, nil
			})
			if _, _, resp := f.raw(c.request); resp.StatusCode != c.status || seen.Load() != 1 {
				t.Errorf("%s, the killed server received it %d times", resp.Status, seen.Load())
			}
		})
	}
}

// A request that kills its session is sent again only a few times.
func TestKillerIsBounded(t *testing.T) {
	f := start(t, nil, nil)
	lives := make(chan chan struct{}, 100)
	bad, seen := killedBy(t, func(int64, *net.TCPConn) { close(<-lives) })
	var epoch holdfast.Epoch
	f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		left := make(chan struct{})
		lives <- left
		epoch++
		return holdfast.Route{Key: key, Address: bad, Epoch: epoch, Left: left}, nil
	})
	if resp, _ := f.get("/s/alice/"); resp.StatusCode != 502 || seen.Load() != 1+repeats {
		t.Errorf("%s after %d servers", resp.Status, seen.Load())
	}
}

// If something else than the session's server refuses, only the parking time bounds the
// tries.
func TestRefusalsOfOthersAreNotCounted(t *testing.T) {
	f := newFleet(t)
	first := f.join("first", nil, nil)
	owner := f.join("owner", echoBody("owner"), nil)
	noServer := closedPort(t)
	for name, wrong := range map[string]func(key holdfast.SessionKey, n int) holdfast.Route{
		"a machine that is gone": func(key holdfast.SessionKey, _ int) holdfast.Route {
			return holdfast.Route{Key: key, Node: "gone", Address: noServer, Epoch: 1}
		},
		"new lives": func(key holdfast.SessionKey, n int) holdfast.Route {
			return holdfast.Route{Key: key, Address: noServer, Epoch: holdfast.Epoch(n + 1)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := first.refusals()
			first.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
				if n := first.refusals() - before; n <= retries+1 {
					return wrong(key, n), nil
				}
				return owner.route(key, nil), nil
			})
			text := strings.Repeat("kept", 100_000)
			if resp, got := first.do(first.request("POST", "/s/alice/", strings.NewReader(text))); got != text {
				t.Errorf("%s, %d bytes", resp.Status, len(got))
			}
		})
	}
	first.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		return owner.route(key, nil), nil
	})
	owner.local.set(func(l *fakeLocal) { l.address = noServer })
	before := first.refusals()
	if resp, body := first.get("/s/bob/", "Accept", "application/json"); resp.StatusCode != 502 || !strings.Contains(body, `"refused"`) || first.refusals()-before != retries {
		t.Errorf("a server that refuses on another node: %s %s after %d", resp.Status, body, first.refusals()-before)
	}
}

// brittle is a connection that breaks at the next write, as if its other side were closed
// at that moment.
type brittle struct {
	net.Conn
	broken *atomic.Bool
}

func (c brittle) Write(b []byte) (int, error) {
	if c.broken.Load() {
		return 0, &net.OpError{Op: "write", Err: syscall.EPIPE}
	}
	return c.Conn.Write(b)
}

// brittlePeers breaks the connections that it opened before broken was set.
type brittlePeers struct {
	peers
	current atomic.Pointer[atomic.Bool]
}

func (p *brittlePeers) Dial(ctx context.Context, node holdfast.NodeID, addr string) (net.Conn, error) {
	c, err := p.peers.Dial(ctx, node, addr)
	return brittle{c, p.current.Load()}, err
}

// If a kept-alive connection breaks before a byte is written, the client still gets its
// answer, with any method.
func TestDeadKeptAliveConnection(t *testing.T) {
	big := make([]byte, 1<<20)
	rand.Read(big)
	f := newFleet(t)
	owner := f.join("owner", echoBody("owner"), nil)
	for _, forwarded := range []bool{true, false} {
		first := f.join("first", nil, nil)
		p := &brittlePeers{peers: peers{f.identity("first")}}
		first.gateway.peers = p
		first.gateway.dialTCP = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return brittle{c, p.current.Load()}, err
		}
		first.leadTo(owner)
		if !forwarded {
			first.serveAt(owner.local.address)
		}
		for _, c := range []struct {
			method string
			body   io.Reader
		}{
			{"GET", nil}, {"DELETE", nil},
			{"POST", strings.NewReader("small")}, {"POST", bytes.NewReader(big)}, {"POST", io.MultiReader(bytes.NewReader(big))},
		} {
			healthy := &atomic.Bool{}
			p.current.Store(healthy)
			first.gateway.pool.CloseIdle()
			first.gateway.nodes.CloseIdleConnections()
			var wg sync.WaitGroup
			for range 5 { // several kept-alive connections
				wg.Go(func() { first.get("/s/alice/") })
			}
			wg.Wait()
			p.current.Store(&atomic.Bool{})
			healthy.Store(true) // from now on the connections are broken
			var want []byte
			req := first.request(c.method, "/s/alice/", nil)
			if c.body != nil {
				want, _ = io.ReadAll(c.body)
				req = first.request(c.method, "/s/alice/", bytes.NewReader(want))
				if _, chunked := c.body.(*bytes.Reader); !chunked {
					req.ContentLength = -1
				}
			}
			resp, got := first.do(req)
			if resp.StatusCode != 200 || got != string(want) {
				t.Errorf("forwarded %v, %s of %d bytes: %s, %d bytes", forwarded, c.method, len(want), resp.Status, len(got))
			}
			if n := first.refusals(); n != 0 {
				t.Errorf("forwarded %v, %s: %d refusals", forwarded, c.method, n)
			}
		}
	}
}

// The gateway sends a body only to a node that asked for it.
func TestBodyIsNotSentUnasked(t *testing.T) {
	f := newFleet(t)
	owner := f.join("owner", echoBody("owner"), nil)
	first := f.join("first", nil, nil)
	for name, answer := range map[string]string{
		// As Go's server answers a request whose body it has not asked for.
		"an answer": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno",
		"the end":   "",
	} {
		t.Run(name, func(t *testing.T) {
			read := make(chan int, 1)
			odd := oddNode(t, f, "odd", func(c net.Conn) {
				br := bufio.NewReader(c)
				if _, err := http.ReadRequest(br); err != nil {
					read <- -1
					return
				}
				io.WriteString(c, answer)
				if answer == "" {
					c.Close()
				}
				n, _ := io.Copy(io.Discard, br)
				read <- int(n)
			})
			before := first.refusals()
			first.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
				if first.refusals() == before {
					return holdfast.Route{Key: key, Node: "odd", Address: odd, Epoch: 1}, nil
				}
				return owner.route(key, nil), nil
			})
			text := strings.Repeat("secret", 100)
			resp, got := first.do(first.request("POST", "/s/alice/", strings.NewReader(text)))
			if answer == "" && got != text || answer != "" && got != "no" {
				t.Errorf("%s %q", resp.Status, got)
			}
			if n := <-read; n != 0 {
				t.Errorf("the node received %d bytes", n)
			}
		})
	}
}

// The gateway gives up a frozen node, which accepts no body.
func TestFrozenNodeIsGivenUp(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes the 10 s that a node may take to ask for a body")
	}
	t.Parallel()
	f := newFleet(t)
	owner, first := f.join("owner", echoBody("owner"), nil), f.join("first", nil, nil)
	thaw := make(chan struct{})
	frozen := oddNode(t, f, "frozen", func(c net.Conn) {
		if c.(*tls.Conn).Handshake() == nil {
			<-thaw
		}
	})
	t.Cleanup(func() { close(thaw) }) // before the end of the node, which waits for its connections
	first.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		if first.refusals() == 0 {
			return holdfast.Route{Key: key, Node: "frozen", Address: frozen, Epoch: 1}, nil
		}
		return owner.route(key, nil), nil
	})
	text := strings.Repeat("patient", 100_000)
	if resp, got := first.do(first.request("POST", "/s/alice/", strings.NewReader(text))); got != text {
		t.Errorf("%s, %d bytes", resp.Status, len(got))
	}
}

// oddNode is a peer listener that calls f for each connection.
func oddNode(t *testing.T, f *fleet, id holdfast.NodeID, serve func(net.Conn)) (address string) {
	t.Helper()
	ln, err := newTLSListener(f.identity(id))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); serve(c) })
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// An offer ends once: it is accepted, or it is withdrawn and never read.
func TestOffer(t *testing.T) {
	for _, accept := range []bool{true, false} {
		var o offer
		b := offeredBody{&body{r: strings.NewReader("body")}, &o}
		o.make()
		if _, err := b.Read(make([]byte, 4)); !errors.Is(err, errNotAccepted) || !o.open() {
			t.Errorf("open: %v", err)
		}
		if accept {
			o.accept()
			if o.withdraw() {
				t.Error("an accepted offer was withdrawn")
			}
		} else if !o.withdraw() {
			t.Error("the offer was not withdrawn")
		}
		o.accept()
		if b, err := io.ReadAll(b); (string(b) == "body") != accept || (err == nil) != accept {
			t.Errorf("accepted %v: %q %v", accept, b, err)
		}
	}
}

func TestInFlight(t *testing.T) {
	f := newFleet(t)
	hung := &asked{came: make(chan struct{}, 10)}
	owner := f.join("owner", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			echoSocket(w, r)
			return
		}
		hung.hang(w, r)
	}, nil)
	first := f.join("first", nil, nil)
	first.sessions.set(func(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		if key == "late" {
			<-ctx.Done()
			return holdfast.Route{}, ctx.Err()
		}
		return owner.route(key, nil), nil
	})
	is := func(m *member, parked, requests, upgraded int) {
		t.Helper()
		poll.Until(t, fmt.Sprintf("%s: %d, %d, %d", m.id, parked, requests, upgraded), func() bool {
			p, r, u := m.gateway.InFlight()
			return p == parked && r == requests && u == upgraded
		})
	}
	c := first.webSocket("ws", nil)
	exchange(t, c, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, key := range []string{"alice", "late"} {
		wg.Go(func() {
			if resp, err := first.client.Do(first.request("GET", "/s/"+key+"/", nil).WithContext(ctx)); err == nil {
				resp.Body.Close()
			}
		})
	}
	is(first, 1, 1, 1)
	is(owner, 0, 1, 1)
	cancel()
	c.CloseNow()
	is(first, 0, 0, 0)
	is(owner, 0, 0, 0)
}
