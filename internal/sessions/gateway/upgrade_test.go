package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"holdfast"

	"holdfast/test/poll"
)

// echoSocket is a WebSocket server that answers every message with itself.
func echoSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 22)
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if c.Write(r.Context(), kind, b) != nil {
			return
		}
	}
}

func (f *fixture) webSocket(scheme string, opts *websocket.DialOptions) *websocket.Conn {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	if opts == nil {
		opts = &websocket.DialOptions{}
	}
	opts.HTTPClient = f.client
	c, _, err := websocket.Dial(ctx, scheme+"://"+f.addr+"/s/alice/ws", opts)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.CloseNow() })
	c.SetReadLimit(1 << 22)
	return c
}

func exchange(t *testing.T, c *websocket.Conn, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	msg := bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n]
	if err := c.Write(ctx, websocket.MessageBinary, msg); err != nil {
		t.Error(err)
		return
	}
	if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, msg) {
		t.Errorf("%d bytes back of %d: %v", len(got), n, err)
	}
}

func eachScheme(t *testing.T, f func(t *testing.T, scheme string, change func(*Config))) {
	t.Run("ws", func(t *testing.T) { f(t, "ws", nil) })
	t.Run("wss", func(t *testing.T) {
		cert, key := certificate(t)
		f(t, "wss", func(c *Config) { c.CertFile, c.KeyFile = cert, key })
	})
}

func TestWebSocketsWork(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string, change func(*Config)) {
		f := start(t, echoSocket, change)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				c := f.webSocket(scheme, &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover})
				for _, n := range []int{0, 1, 64, 125, 126, 16384, 65536, 1 << 20} {
					exchange(t, c, n)
				}
				if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		poll.Until(t, "all sessions are released", func() bool { held, _ := f.sessions.count(); return held == 0 })
		if n := valueOf(t, f.gateway.metrics.upgraded); n != 0 {
			t.Errorf("the metric counts %v open connections", n)
		}
	})
}

func TestSessionThatLeavesClosesWith1012(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string, change func(*Config)) {
		f := start(t, echoSocket, change)
		c := f.webSocket(scheme, nil)
		exchange(t, c, 100)
		close(f.left)
		expectRestart(t, c)
		poll.Until(t, "the session is released", func() bool { held, _ := f.sessions.count(); return held == 0 })
	})
}

func TestStopClosesWith1012(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string, change func(*Config)) {
		f := start(t, echoSocket, change)
		c := f.webSocket(scheme, nil)
		exchange(t, c, 100)
		var wg sync.WaitGroup
		wg.Go(func() { expectRestart(t, c) })
		f.stop()
		wg.Wait()
	})
}

func expectRestart(t *testing.T, c *websocket.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, _, err := c.Read(ctx)
	if got := websocket.CloseStatus(err); got != websocket.StatusServiceRestart {
		t.Errorf("close status %d: %v", got, err)
	}
}

// switcher is a server that agrees to any upgrade, sends data right after its 101, and
// then calls after.
func switcher(t *testing.T, after func(c *net.TCPConn, br *bufio.Reader)) (address string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
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
			wg.Go(func() {
				defer c.Close()
				br := bufio.NewReader(c)
				req, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+
					req.Header.Get("Upgrade")+"\r\nX-Server: kept\r\n\r\nearly from server,")
				after(c.(*net.TCPConn), br)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

const askUpgrade = "GET /s/alice/ HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: chat\r\n\r\n"

// Bytes right after the handshake belong to the new protocol in both directions, and so
// does a half close.
func TestEarlyDataAndHalfClose(t *testing.T) {
	f := start(t, nil, nil)
	f.serveAt(switcher(t, func(c *net.TCPConn, br *bufio.Reader) {
		got, _ := io.ReadAll(br) // until the client's half close
		io.WriteString(c, "read: "+string(got))
	}))
	c, br, resp := f.raw(askUpgrade + "early from client,")
	if resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "chat" || resp.Header.Get("X-Server") != "kept" {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	io.WriteString(c, "late from client")
	c.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(br)
	if want := "early from server,read: early from client,late from client"; string(got) != want || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// The answer of a server that does not agree reaches the client.
func TestRefusedUpgradeIsAResponse(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Why", "no")
		w.WriteHeader(426)
		io.WriteString(w, strings.Repeat("no", 50_000))
	}, nil)
	_, _, resp := f.raw(askUpgrade)
	b, err := io.ReadAll(resp.Body)
	if resp.StatusCode != 426 || resp.Header.Get("X-Why") != "no" || len(b) != 100_000 || err != nil {
		t.Errorf("%s, %d bytes, %v", resp.Status, len(b), err)
	}
}

func TestOddHandshakesAre502(t *testing.T) {
	for name, answer := range map[string]string{
		"other protocol": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n",
		"no HTTP":        "SSH-2.0-OpenSSH\r\n",
		"endless header": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20),
		"endless 1xx":    strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100),
		"nothing":        "",
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, nil, nil)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				if c, err := ln.Accept(); err == nil {
					http.ReadRequest(bufio.NewReader(c))
					io.WriteString(c, answer)
					c.Close()
				}
			}()
			defer func() { ln.Close(); <-done }()
			f.serveAt(ln.Addr().String())
			if _, _, resp := f.raw(askUpgrade); resp.StatusCode != 502 {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
}

// Pages of other origins cannot open WebSockets, unless they are listed.
func TestOriginOfUpgrades(t *testing.T) {
	f := start(t, echoSocket, func(c *Config) { c.Origins = []string{"https://app.test"} })
	for origin, want := range map[string]int{
		"":                    101,
		"http://" + f.addr:    101,
		"https://app.test":    101, // the gateway's check; that of the server follows
		"https://evil.test":   403,
		"null":                403,
		"http://app.test:123": 403,
	} {
		head := "GET /s/alice/ HTTP/1.1\r\nHost: " + f.addr + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
		if origin != "" {
			head += "Origin: " + origin + "\r\n"
		}
		_, _, resp := f.raw(head + "\r\n")
		if origin == "https://app.test" {
			want = 403
			if b, _ := io.ReadAll(resp.Body); !strings.Contains(string(b), "not authorized") {
				t.Errorf("%s: the server did not receive the request: %s", origin, b)
			}
		}
		if resp.StatusCode != want {
			t.Errorf("%q: %d, want %d", origin, resp.StatusCode, want)
		}
	}
}

// Over TLS, a page that was loaded without TLS has another origin. Without TLS, a proxy in
// front may have terminated it.
func TestOriginsScheme(t *testing.T) {
	cert, key := certificate(t)
	for _, secure := range []bool{true, false} {
		f := start(t, echoBody("here"), func(c *Config) {
			if secure {
				c.CertFile, c.KeyFile = cert, key
			}
		})
		for scheme, want := range map[string]bool{"https": true, "http": !secure} {
			req := f.request("POST", "/s/alice/", nil, "Origin", scheme+"://"+f.addr)
			if secure {
				req.URL.Scheme = "https"
			}
			if resp, _ := f.do(req); (resp.StatusCode == 200) != want {
				t.Errorf("TLS %v, a page by %s: %s", secure, scheme, resp.Status)
			}
		}
	}
}

// No spelling of a path or a host leads to an invalid key, or to a path outside the
// session.
func FuzzParseTarget(f *testing.F) {
	c := Config{Domain: "sessions.test", Ports: holdfast.Ports{All: true}}
	f.Add("3000-a.sessions.test", "/s/a/p/80/x")
	f.Add("0-3000-a.sessions.test", "/s/a/p/080/")
	for _, path := range []string{"/s/alice/", "/s/alice", "/s/a%2fb/c", "/s//", "//s/a/", "*", "", "/s/a/../b"} {
		f.Add("a.sessions.test:80", path)
		f.Add("[::1]:80", path)
	}
	f.Fuzz(func(t *testing.T, host, path string) {
		got, err := c.parseTarget(host, path)
		if err != nil {
			return
		}
		if _, err := holdfast.ParseSessionKey(string(got.key)); err != nil {
			t.Errorf("key %q", got.key)
		}
		if !strings.HasPrefix(got.path, "/") || got.prefix+got.path != path {
			t.Errorf("prefix %q, path %q of %q", got.prefix, got.path, path)
		}
		if got.port < 0 || got.port > 65535 {
			t.Errorf("port %d", got.port)
		}
		if own := "/s/" + string(got.key); got.prefix != "" && got.prefix != own && got.prefix != fmt.Sprintf("%s/p/%d", own, got.port) {
			t.Errorf("prefix %q for key %q", got.prefix, got.key)
		}
	})
}
