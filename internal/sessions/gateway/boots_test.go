package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// A page of another site boots no session by an image, a script, a frame, a form, a fetch
// or a prefetch. A link to a session does, and so does an allowed origin. A session that
// runs is reached as before.
func TestPageOfAnotherSiteBootsNothing(t *testing.T) {
	f := start(t, echoBody("here"), func(c *Config) { c.Origins = []string{"https://app.test"} })
	const site, mode, dest = "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"
	navigation := []string{site, "cross-site", mode, "navigate", dest, "document"}
	for _, c := range []struct {
		name   string
		method string
		header []string
		status int
	}{
		{"no browser", "GET", nil, 200},
		{"the same origin", "GET", []string{site, "same-origin", mode, "cors"}, 200},
		{"typed in", "GET", []string{site, "none", mode, "navigate", dest, "document"}, 200},
		{"a link", "GET", navigation, 200},
		{"an image", "GET", []string{site, "cross-site", mode, "no-cors", dest, "image"}, 403},
		{"a frame", "GET", []string{site, "cross-site", mode, "navigate", dest, "iframe"}, 403},
		{"a fetch", "GET", []string{site, "cross-site", mode, "cors", dest, "empty", "Origin", "https://evil.test"}, 403},
		{"an allowed origin's fetch", "GET", []string{site, "cross-site", mode, "cors", dest, "empty", "Origin", "https://app.test"}, 200},
		{"a HEAD", "HEAD", navigation, 403},
		{"an OPTIONS", "OPTIONS", []string{site, "cross-site", mode, "cors", "Origin", "https://evil.test"}, 403},
		{"a prefetch", "GET", append([]string{"Sec-Purpose", "prefetch"}, navigation...), 403},
		{"a prerender", "GET", append([]string{"Sec-Purpose", "prefetch;prerender"}, navigation...), 403},
		{"an old prefetch", "GET", append([]string{"Purpose", "prefetch"}, navigation...), 403},
		{"a site alone", "GET", []string{site, "cross-site"}, 403},
	} {
		f.sessions.cool("alice")
		resp, body := f.do(f.request(c.method, "/s/alice/", nil, c.header...))
		if resp.StatusCode != c.status {
			t.Errorf("%s: %s %s", c.name, resp.Status, body)
		}
		if f.sessions.cool(); c.method != "HEAD" && c.status == 403 && !strings.Contains(body, "another site") {
			t.Errorf("%s: %s", c.name, body)
		}
		if resp, body := f.do(f.request(c.method, "/s/alice/", nil, c.header...)); resp.StatusCode != 200 {
			t.Errorf("%s, to a session that runs: %s %s", c.name, resp.Status, body)
		}
	}
}

// A client boots a limited number of sessions; then it gets 429 with the time to wait.
// Sessions that run, and other clients, are not affected.
func TestBootsOfAClientAreBounded(t *testing.T) {
	f := start(t, echoBody("here"), func(c *Config) { c.BootsPerClient = 3 })
	f.sessions.cool("s0", "s1", "s2", "s3")
	for i, want := range []int{200, 200, 200, 429} {
		resp, body := f.get(fmt.Sprintf("/s/s%d/", i), "Accept", "application/json")
		if resp.StatusCode != want || (want == 429) != strings.Contains(body, `"reason":"boots"`) {
			t.Errorf("boot %d: %s %s", i, resp.Status, body)
		}
		if after := resp.Header.Get("Retry-After"); (want == 429) != (after != "") || after == "0" {
			t.Errorf("boot %d: Retry-After %q", i, after)
		}
	}
	if f.sessions.boots != 3 {
		t.Errorf("%d boots", f.sessions.boots)
	}
	if resp, _ := f.get("/s/s0/"); resp.StatusCode != 200 {
		t.Errorf("a session that runs: %s", resp.Status)
	}
	if n := valueOf(t, f.gateway.metrics.errors.WithLabelValues("boots")); n != 1 {
		t.Errorf("%v counted", n)
	}
}

// The table of clients has a bound. Clients without an entry share one limit.
func TestTableOfClientsIsBounded(t *testing.T) {
	b, now := newBoots(2), time.Now()
	b.most = 2
	take := func(client string) bool { return b.take(netip.MustParseAddr(client), now) == nil }
	for _, c := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		if !take(c) {
			t.Errorf("%s: the first boot is refused", c)
		}
	}
	if len(b.clients) != 2 || take("10.0.0.5") {
		t.Errorf("%d clients, or a third boot of those without an entry", len(b.clients))
	}
	now = now.Add(time.Minute)
	if !take("10.0.0.5") || len(b.clients) != 1 {
		t.Errorf("%d clients after a minute", len(b.clients))
	}
	err := errors.Join(b.take(netip.MustParseAddr("10.0.0.5"), now), b.take(netip.MustParseAddr("10.0.0.5"), now))
	if many, ok := errors.AsType[*bootsError](err); !ok || many.after != 30*time.Second {
		t.Errorf("got %v", err)
	}
}

func TestClientOf(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1", "[::ffff:10.0.0.1]:80": "10.0.0.1", "[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::",
		"[fe80::1%eth0]:80": "fe80::", "nothing": "invalid IP",
	} {
		if got := clientOf(remote).String(); got != want {
			t.Errorf("%s: %s, want %s", remote, got, want)
		}
	}
}
