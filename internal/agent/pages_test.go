package agent

import (
	"net/http/httptest"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/sessions/gateway"
)

// A key that begins as a port does has a host name of its own.
func TestSessionURLBesidePorts(t *testing.T) {
	long := holdfast.SessionKey("3000-" + strings.Repeat("x", 58))
	for _, tt := range []struct {
		url, domain string
		key         holdfast.SessionKey
		want        string
	}{
		{"", "s.test", "3000-alice", "http://0-3000-alice.s.test:80/"},
		{"", "s.test", "70000-alice", "http://70000-alice.s.test:80/"},
		{"", "s.test", long, ""},
		{"", "", "3000-alice", "http://localhost:80/s/3000-alice/"},
		{"https://{key}.s.test/x/{key}/", "s.test", "3000-alice", "https://0-3000-alice.s.test/x/3000-alice/"},
		{"https://gw.test/s/{key}/", "s.test", long, "https://gw.test/s/" + string(long) + "/"},
		{"https://{key}.s.test", "s.test", long, ""},
	} {
		a := &Agent{cfg: config.Config{Gateway: config.Gateway{Listen: "127.0.0.1:80", URL: tt.url,
			Config: gateway.Config{Domain: tt.domain, Ports: holdfast.Ports{All: true}}}}}
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = "localhost"
		if got := a.sessionURL(r, tt.key); got != tt.want {
			t.Errorf("%s, %s: %q, want %q", tt.url, tt.key, got, tt.want)
		}
	}
}

func TestSessionURL(t *testing.T) {
	for _, tt := range []struct {
		name, listen, domain, cert, url, from string
		want                                  string
	}{
		{"loopback", "127.0.0.1:7070", "", "", "", "127.0.0.1:7071", "http://127.0.0.1:7070/s/alice/"},
		{"by another name of this host", "127.0.0.1:7070", "", "", "", "localhost:7071", "http://localhost:7070/s/alice/"},
		{"loopback, and the browser is elsewhere", "127.0.0.1:7070", "", "", "", "web-1:7071", ""},
		{"all addresses", "0.0.0.0:443", "", "/c", "", "web-1:7071", "https://web-1:443/s/alice/"},
		{"with a domain", "0.0.0.0:443", "s.example.org", "/c", "", "web-1:7071", "https://alice.s.example.org:443/"},
		{"behind a proxy", "127.0.0.1:7070", "s.example.org", "", "https://{key}.s.example.org/", "web-1:7071", "https://alice.s.example.org/"},
		{"behind a proxy, by path", "127.0.0.1:7070", "", "", "https://gw.example.org/x/{key}/?a=b", "web-1:7071", "https://gw.example.org/x/alice/?a=b"},
	} {
		a := &Agent{cfg: config.Config{Gateway: config.Gateway{Listen: tt.listen, URL: tt.url, Config: gateway.Config{Domain: tt.domain, CertFile: tt.cert}}}}
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = tt.from
		if got := a.sessionURL(r, "alice"); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
