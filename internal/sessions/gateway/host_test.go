package gateway

import (
	"net/http"
	"testing"
)

func TestOnlyKnownNamesAreServed(t *testing.T) {
	c := Config{Domain: "sessions.test", Hosts: []string{"Gateway.example.org"}}
	for host, want := range map[string]bool{
		"127.0.0.1:7070":           true,
		"[::1]:7070":               true,
		"::1":                      true,
		"localhost:7070":           true,
		"alice.localhost":          true,
		"sessions.test":            true,
		"alice.sessions.test:7070": true,
		"gateway.example.org":      true,
		"gateway.example.org.:80":  true,
		"evil.example.org:7070":    false,
		"evilsessions.test":        false,
		"127.0.0.1.evil.test":      false,
		"localhost.evil.test":      false,
		"":                         false,
	} {
		if got := c.knownHost(host); got != want {
			t.Errorf("%q: known is %v", host, got)
		}
	}
	if !(Config{Hosts: []string{"*"}}).knownHost("anything.test") {
		t.Error("* does not accept every name")
	}
}

func TestUnknownNameReachesNoSession(t *testing.T) {
	f := start(t, func(http.ResponseWriter, *http.Request) { t.Error("the session received a request") },
		func(c *Config) { c.Hosts = nil })
	req := f.request("GET", "/s/alice/", nil)
	req.Host = "evil.test"
	if res, _ := f.do(req); res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("status %s", res.Status)
	}
}

func TestPathsAreOffBesideADomain(t *testing.T) {
	f := start(t, func(http.ResponseWriter, *http.Request) {}, func(c *Config) { c.Domain = "sessions.test" })
	for host, want := range map[string]int{"127.0.0.1": 404, "sessions.test": 404, "alice.sessions.test": 200} {
		req := f.request("GET", "/s/bob/", nil)
		req.Host = host
		if res, _ := f.do(req); res.StatusCode != want {
			t.Errorf("%s: %s, want %d", host, res.Status, want)
		}
	}
}

func TestPagesOfOtherOriginsAreRefused(t *testing.T) {
	f := start(t, func(http.ResponseWriter, *http.Request) {}, func(c *Config) { c.Origins = []string{"https://app.test"} })
	for _, c := range []struct {
		method, origin string
		want           int
	}{
		{"POST", "https://evil.test", 403}, {"DELETE", "null", 403}, {"POST", "https://app.test", 200},
		{"POST", "", 200}, {"GET", "https://evil.test", 200},
	} {
		req := f.request(c.method, "/s/alice/", nil)
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		if res, _ := f.do(req); res.StatusCode != c.want {
			t.Errorf("%s from %q: %s, want %d", c.method, c.origin, res.Status, c.want)
		}
	}
}

func TestProtocolSwitchedUnasked(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "x")
		w.WriteHeader(http.StatusSwitchingProtocols)
	}, nil)
	if res, _ := f.do(f.request("GET", "/s/alice/", nil)); res.StatusCode != http.StatusBadGateway {
		t.Errorf("status %s", res.Status)
	}
}
