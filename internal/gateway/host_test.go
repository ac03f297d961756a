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
		t.Error("* does not stand for any name")
	}
}

func TestUnknownNameReachesNoSession(t *testing.T) {
	f := start(t, func(http.ResponseWriter, *http.Request) { t.Error("the session was asked") },
		func(c *Config) { c.Hosts = nil })
	req := f.request("GET", "/s/alice/", nil)
	req.Host = "evil.test"
	if res, _ := f.do(req); res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("status %s", res.Status)
	}
}
