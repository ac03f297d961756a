package gateway

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// eachWay calls f with a node that serves its sessions itself, and with one that forwards.
func eachWay(t *testing.T, handler http.HandlerFunc, f func(t *testing.T, x *fixture)) {
	t.Run("alone", func(t *testing.T) { f(t, start(t, handler, nil)) })
	t.Run("fleet", func(t *testing.T) {
		fleet := newFleet(t)
		owner, first := fleet.join("owner", handler, nil), fleet.join("first", nil, nil)
		first.leadTo(owner)
		f(t, first.fixture)
	})
}

// A trailer carries no field that describes the client, belongs to one connection, or is
// reserved, in either direction, announced or not.
func TestTrailersAreScrubbed(t *testing.T) {
	seen := make(chan http.Header, 1)
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Forwarded-For")
		io.Copy(w, r.Body)
		seen <- r.Trailer
		for _, name := range []string{"X-Sum", "X-Forwarded-For"} {
			w.Header().Set(name, "1")
		}
		for _, name := range []string{"X-Late", "X-Holdfast-Failed", "x_holdfast_failed", "Set-Cookie", "Connection", "Forwarded"} {
			w.Header()[http.TrailerPrefix+name] = []string{"2"}
		}
	}
	eachWay(t, handler, func(t *testing.T, f *fixture) {
		_, _, resp := f.raw("POST /s/alice/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" +
			"Trailer: X-Client, X-Forwarded-For\r\n\r\n4\r\nbody\r\n0\r\nX-Client: 1\r\nX-Forwarded-For: 6.6.6.6\r\n" +
			"X-Forwarded-Host: evil\r\nx_forwarded_for: 6.6.6.6\r\nX-Real-Ip: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX-Holdfast-Epoch: 9\r\n" +
			"Connection: X-Client\r\nUpgrade: h2c\r\nCookie: holdfast_token=x\r\nAuthorization: Bearer x\r\nX-Last: 2\r\n\r\n")
		if b, err := io.ReadAll(resp.Body); string(b) != "body" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
		if diff := cmp.Diff(http.Header{"X-Client": {"1"}, "X-Last": {"2"}}, <-seen); diff != "" {
			t.Errorf("the server: %s", diff)
		}
		if diff := cmp.Diff(http.Header{"X-Sum": {"1"}, "X-Late": {"2"}}, resp.Trailer); diff != "" {
			t.Errorf("the client: %s", diff)
		}
	})
}

// Only WebSocket and the protocols of the session's template are upgraded, and never h2c.
// Any other request is served as an ordinary one (RFC 9110, 7.8).
func TestOnlyNamedProtocolsAreUpgraded(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Upgrade", "Connection", "Http2-Settings"} {
			if v := r.Header.Get(name); v != "" && (name == "Http2-Settings" || !isWebSocket(r.Header) && !strings.EqualFold(r.Header.Get("Upgrade"), "chat")) {
				t.Errorf("the server receives %s: %s", name, v)
			}
		}
		if name := r.Header.Get("Upgrade"); name != "" {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", name)
			w.WriteHeader(http.StatusSwitchingProtocols)
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			io.Copy(c, rw)
			c.Close()
			return
		}
		io.WriteString(w, "ordinary")
	}
	eachWay(t, handler, func(t *testing.T, f *fixture) {
		for name, want := range map[string]int{
			"websocket": 101, "chat": 101, "CHAT": 101,
			"h2c": 200, "other": 200, "chat/2": 200, "websocket, h2c": 200, "TLS/1.0": 200,
		} {
			c, br, resp := f.raw("GET /s/alice/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + name + "\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
			if resp.StatusCode != want {
				t.Errorf("%s: %s", name, resp.Status)
				continue
			}
			if want == 101 {
				io.WriteString(c, "hello")
				c.(*net.TCPConn).CloseWrite()
			}
			var from io.Reader = resp.Body
			if want == 101 {
				from = br
			}
			if b, err := io.ReadAll(from); err != nil || string(b) != map[int]string{101: "hello", 200: "ordinary"}[want] {
				t.Errorf("%s: %q, %v", name, b, err)
			}
			c.Close()
		}
	})
}

// A request that cannot be upgraded loses the fields that belong to its connection.
func TestUpgradeWithABodyIsOrdinary(t *testing.T) {
	seen := make(chan http.Header, 1)
	f := start(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }, nil)
	f.raw("POST /s/alice/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, X-Hop\r\nUpgrade: chat\r\nX-Hop: 1\r\nContent-Length: 1\r\n\r\nb")
	if h := <-seen; h.Get("X-Hop") != "" || h.Get("Upgrade") != "" {
		t.Errorf("the server receives %v", h)
	}
}
