package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
)

// forwardSeeds are requests of other gateways, and of those that pretend to be one.
var forwardSeeds = []string{
	"GET / HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 1\r\n\r\n",
	"POST /a%2Fb//c?x=1;y HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: a-1\r\nX-Holdfast-Epoch: 1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody",
	"PUT / HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 1\r\nTransfer-Encoding: chunked\r\nTrailer: X-A, X-Holdfast-Failed\r\n\r\n4\r\nbody\r\n0\r\nX-A: b\r\nX-Holdfast-Failed: left\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 1\r\nX-Holdfast-Keep: 1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 01\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: Alice\r\nX-Holdfast-Epoch: 2\r\n\r\n",
	"GET http://y/ HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 1\r\nX-Forwarded-For: 1.2.3.4\r\nx_holdfast_epoch: 9\r\nConnection: X-Forwarded-For\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: alice:3000\r\nX-Holdfast-Epoch: 1\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: alice:03000\r\nX-Holdfast-Epoch: 1\r\n\r\n",
	"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 1\r\n\r\n",
	"OPTIONS * HTTP/1.1\r\nHost: x\r\nX-Holdfast-Session: alice\r\nX-Holdfast-Epoch: 1\r\n\r\n",
}

// A forwarded request reaches a session only if it names one session and one epoch, and
// without the headers between gateways. Otherwise it is refused, and nothing is held.
func FuzzPeerForward(f *testing.F) {
	for _, s := range forwardSeeds {
		f.Add([]byte(s))
	}
	var seen atomic.Pointer[http.Request]
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen.Store(r) }))
	f.Cleanup(srv.Close)
	cfg := DefaultConfig()
	cfg.ResponseTimeout = patience
	g, err := New(cfg, &fakeSessions{}, nil, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(g.pool.Close)
	close(g.up)
	local := &fakeLocal{address: srv.Listener.Addr().String()}
	handler := g.PeerForwardHandler(local)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		named, epochs := r.Header["X-Holdfast-Session"], r.Header["X-Holdfast-Epoch"]
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		seen.Store(nil)
		w := httptest.NewRecorder()
		func() {
			defer func() {
				if p := recover(); p != nil && p != http.ErrAbortHandler { // ends the response
					panic(p)
				}
			}()
			handler.ServeHTTP(w, r.WithContext(ctx))
		}()
		if _, held := local.count(); held != 0 || g.handlers.count() != 0 {
			t.Errorf("%d sessions are held, %d requests in progress", held, g.handlers.count())
		}
		got := seen.Load()
		if got == nil {
			if w.Code < 400 {
				t.Errorf("answered with %d without the session", w.Code)
			}
			return
		}
		if len(named) != 1 || len(epochs) != 1 || epochs[0] != "1" || got.Method == http.MethodConnect || !strings.HasPrefix(got.RequestURI, "/") {
			t.Errorf("the session %q, epoch %q received %s %q", named, epochs, got.Method, got.RequestURI)
		}
		name, port, ported := strings.Cut(named[0], ":")
		if _, err := holdfast.ParseSessionKey(name); err != nil {
			t.Error(err)
		}
		if _, own, _ := strings.Cut(local.address, ":"); ported && port != own {
			t.Errorf("port %s, which no template allows, received the request", port)
		}
		for name := range got.Header {
			if begins(name, reservedPrefix) || name == "Expect" || name == "Upgrade" && !strings.EqualFold(got.Header.Get(name), "websocket") && got.Header.Get(name) != "chat" {
				t.Errorf("the session received %s: %q", name, got.Header[name])
			}
		}
	})
}

// answering is a connection whose other end has sent its answer.
type answering struct {
	net.Conn
	io.Reader
}

func (a answering) Read(b []byte) (int, error)  { return a.Reader.Read(b) }
func (a answering) Write(b []byte) (int, error) { return len(b), nil }

// Whatever another node answers, the client receives no header between gateways, and a
// socket is kept within the limits only.
func FuzzPeerAnswer(f *testing.F) {
	keep := http.Header{}
	setKeepHeader(keep, *keepTold)
	for _, s := range []string{
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Holdfast-Keep: " + keep.Get(keepHeader) + "\r\n\r\n\x81\x01a",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\n\r\n",
		"HTTP/1.1 421 Misdirected Request\r\nX-Holdfast-Refused: left\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 502 Bad Gateway\r\nX-Holdfast-Failed: time\r\n\r\n",
		"HTTP/1.1 200 OK\r\nx_holdfast_failed: left\r\nSet-Cookie: a=b; Path=/; Domain=x\r\nLocation: //x/y\r\nTransfer-Encoding: chunked\r\nTrailer: Set-Cookie\r\n\r\n0\r\nSet-Cookie: a=b\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		req := httptest.NewRequest("GET", "http://x/", nil)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "websocket")
		tr := &request{target: target{key: "alice", prefix: "/s/alice"}, route: holdfast.Route{Node: "owner"}}
		var answered atomic.Bool
		resp, ahead, err := handshake(answering{Reader: bytes.NewReader(b)}, req, 4096, &answered)
		if err != nil {
			return
		}
		if resp.StatusCode == 101 && !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") {
			t.Errorf("switched to %q", resp.Header.Get("Upgrade"))
		}
		_ = tr.verdict(resp)
		if k := tr.keepPolicy(req, &switched{resp: resp}); k != nil {
			if k.Time <= 0 || k.Buffer < 1 || len(k.Tell) > holdfast.MaxTell {
				t.Errorf("kept with %+v", k)
			}
			h := http.Header{}
			setKeepHeader(h, *k)
			if again := keepFromHeader(h); again == nil || *again != *k {
				t.Errorf("the policy %+v is read as %+v", k, again)
			}
		}
		resp.Request = req
		tr.rewriteResponse(resp)
		io.Copy(io.Discard, resp.Body)
		io.Copy(io.Discard, ahead)
		for _, h := range []http.Header{resp.Header, resp.Trailer} {
			for name := range h {
				if begins(name, reservedPrefix) {
					t.Errorf("the client receives %s", name)
				}
			}
		}
		for _, c := range resp.Header["Set-Cookie"] {
			if strings.Contains(strings.ToLower(c), "; domain=") {
				t.Errorf("cookie %q", c)
			}
		}
	})
}
