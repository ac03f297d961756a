package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast"
)

// withPorts makes a gateway serve ports by path and by host.
func withPorts(c *Config) {
	c.Domain, c.Paths, c.Ports = "sessions.test", true, holdfast.Ports{List: []int{80, 3000, 5173}}
}

func TestPortsInNames(t *testing.T) {
	var on Config
	withPorts(&on)
	off := on
	off.Ports = holdfast.Ports{}
	all := on
	all.Ports = holdfast.Ports{All: true}
	key63, key59 := strings.Repeat("k", 63), strings.Repeat("k", 59)
	for _, tt := range []struct {
		name   string
		config Config
		host   string // a label of the domain, "" for path routing
		path   string
		want   target
		err    string
	}{
		{"a key", on, "alice", "/x", target{key: "alice", path: "/x"}, ""},
		{"a port", on, "3000-alice", "/x", target{key: "alice", port: 3000, path: "/x"}, ""},
		{"a port of a key with a number", on, "3000-7-alice", "/", target{key: "7-alice", port: 3000, path: "/"}, ""},
		{"the own port", on, "0-alice", "/", target{key: "alice", path: "/"}, ""},
		{"the own port of a key like a port", on, "0-3000-alice", "/", target{key: "3000-alice", path: "/"}, ""},
		{"the own port of a key like an own port", on, "0-0-alice", "/", target{key: "0-alice", path: "/"}, ""},
		{"no template lists ports", off, "3000-alice", "/", target{key: "3000-alice", path: "/"}, ""},
		{"no template lists ports, and 0", off, "0-alice", "/", target{key: "0-alice", path: "/"}, ""},
		{"a port of no template", on, "3001-alice", "/", target{key: "alice", port: 3001, path: "/"}, "no template allows port 3001"},
		{"every port", all, "65535-alice", "/", target{key: "alice", port: 65535, path: "/"}, ""},
		{"over every port", all, "65536-alice", "/", target{key: "65536-alice", path: "/"}, ""},
		{"a leading zero", on, "03000-alice", "/", target{key: "03000-alice", path: "/"}, ""},
		{"two hyphens", on, "3000--alice", "/", target{key: "3000--alice", path: "/"}, ""},
		{"only a number", on, "3000", "/", target{key: "3000", path: "/"}, ""},
		{"a number and a hyphen", on, "3000-", "/", target{}, "starts or ends with a hyphen"},
		{"a minus", on, "-3000-alice", "/", target{}, "starts or ends with a hyphen"},
		{"a plus", on, "+3000-alice", "/", target{}, "not a session key"},
		{"the longest label", on, "80-" + key59 + "x", "/", target{key: holdfast.SessionKey(key59 + "x"), port: 80, path: "/"}, ""},
		{"a longer label", on, "80-" + key59 + "xx", "/", target{}, "it has 64 bytes"},
		{"upper case", on, "3000-ALICE", "/", target{key: "alice", port: 3000, path: "/"}, ""},
		{"two names", on, "3000.alice", "/", target{}, "not a session key"},

		{"path: a key", on, "", "/s/alice/x", target{key: "alice", prefix: "/s/alice", path: "/x"}, ""},
		{"path: a port", on, "", "/s/alice/p/3000/x/../y", target{key: "alice", port: 3000, prefix: "/s/alice/p/3000", path: "/x/../y"}, ""},
		{"path: a port of the longest key", on, "", "/s/" + key63 + "/p/3000/", target{key: holdfast.SessionKey(key63), port: 3000, prefix: "/s/" + key63 + "/p/3000", path: "/"}, ""},
		{"path: a key like a port", on, "", "/s/3000-alice/", target{key: "3000-alice", prefix: "/s/3000-alice", path: "/"}, ""},
		{"path: no slash", on, "", "/s/alice/p/3000", target{key: "alice", port: 3000, prefix: "/s/alice/p/3000"}, errSlash.Error()},
		{"path: the own port", on, "", "/s/alice/p/0/p/3000/", target{key: "alice", prefix: "/s/alice/p/0", path: "/p/3000/"}, ""},
		{"path: no template lists ports", off, "", "/s/alice/p/3000/x", target{key: "alice", prefix: "/s/alice", path: "/p/3000/x"}, ""},
		{"path: a port of no template", on, "", "/s/alice/p/22/", target{key: "alice", port: 22, prefix: "/s/alice/p/22", path: "/"}, "no template allows port 22"},
		{"path: another spelling", on, "", "/s/alice/p/%33000/", target{key: "alice", prefix: "/s/alice", path: "/p/%33000/"}, ""},
		{"path: no number", on, "", "/s/alice/p/x/", target{key: "alice", prefix: "/s/alice", path: "/p/x/"}, ""},
		{"path: a leading zero", on, "", "/s/alice/p/03000/", target{key: "alice", prefix: "/s/alice", path: "/p/03000/"}, ""},
		{"path: deeper", on, "", "/s/alice/x/p/3000/", target{key: "alice", prefix: "/s/alice", path: "/x/p/3000/"}, ""},
	} {
		host := "127.0.0.1:7070"
		if tt.host != "" {
			host = tt.host + ".sessions.test:443"
		}
		got, err := tt.config.parseTarget(host, tt.path)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.err)
		}
		if err == nil || tt.want != (target{}) {
			if got != tt.want {
				t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
			}
		}
	}
}

// The name that the gateway gives to a key leads back to it, and to its own port.
func FuzzHostLabel(f *testing.F) {
	for _, key := range []string{"alice", "3000-alice", "0-0-a", "3000--a", "65536-a", "80-" + strings.Repeat("x", 60), "3000"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key, err := holdfast.ParseSessionKey(text)
		if err != nil {
			return
		}
		for _, ports := range []holdfast.Ports{{}, {All: true}, {List: []int{80}}} {
			c := Config{Domain: "sessions.test", Ports: ports}
			label := c.HostLabel(key)
			if label == "" {
				if len(key) <= 61 || ports.None() {
					t.Errorf("key %s has no name", key)
				}
				continue
			}
			got, err := c.parseTarget(label+".sessions.test", "/")
			if err != nil || got.key != key || got.port != 0 || len(label) > 63 {
				t.Errorf("%s leads to %+v, %v", label, got, err)
			}
		}
	})
}

// session has a server on two ports of one address, and their route.
func session(t *testing.T) (own, other string, route holdfast.Route) {
	t.Helper()
	serve := func(name string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") != "" {
				c, err := websocket.Accept(w, r, nil)
				if err != nil {
					return
				}
				defer c.CloseNow()
				_ = c.Write(r.Context(), websocket.MessageText, []byte(name))
				_, _, _ = c.Read(r.Context())
				return
			}
			w.Header().Set("Set-Cookie", "a=b; Path=/")
			w.Header().Set("Location", "/login")
			io.WriteString(w, name+" "+r.RequestURI+" "+r.Header.Get("X-Forwarded-Prefix"))
		}))
		t.Cleanup(srv.Close)
		t.Cleanup(srv.CloseClientConnections)
		return srv.Listener.Addr().String()
	}
	first, second := serve("own"), serve("other")
	return portOf(t, first), portOf(t, second), holdfast.Route{Key: "alice", Address: first, Epoch: 1}
}

func portOf(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// number reads a port.
func number(t *testing.T, port string) int {
	t.Helper()
	n, ok := parsePort(port)
	if !ok {
		t.Fatalf("%q is no port", port)
	}
	return n
}

// Each port has its own connections, prefix and cookies. A port that the session's
// template does not list, or on which nothing listens, is answered with its number.
func TestPortsOfASession(t *testing.T) {
	own, other, route := session(t)
	closed := portOf(t, closedPort(t))
	f := start(t, nil, func(c *Config) {
		withPorts(c)
		c.Ports = holdfast.Ports{All: true}
	})
	route.Left, route.Ports = f.left, holdfast.Ports{List: []int{number(t, other), number(t, closed)}}
	f.sessions.set(func(context.Context, holdfast.SessionKey) (holdfast.Route, error) { return route, nil })
	for range 2 { // the second time over the pool
		for path, want := range map[string]string{
			"/s/alice/x":                  "own /x /s/alice",
			"/s/alice/p/0/x":              "own /x /s/alice/p/0",
			"/s/alice/p/" + own + "/x":    "own /x /s/alice/p/" + own,
			"/s/alice/p/" + other + "/x?": "other /x? /s/alice/p/" + other,
		} {
			resp, body := f.get(path)
			prefix := strings.Fields(want)[2]
			if body != want || resp.Header.Get("Set-Cookie") != "a=b; Path="+prefix+"/" || resp.Header.Get("Location") != prefix+"/login" {
				t.Errorf("%s: %s %q %v", path, resp.Status, body, resp.Header)
			}
		}
	}
	req := f.request("GET", "/y", nil)
	req.Host = other + "-alice.sessions.test"
	if _, body := f.do(req); body != "other /y " {
		t.Errorf("by host: %q", body)
	}
	for path, want := range map[string][]string{
		"/s/alice/p/1/":              {"404", `"reason":"port"`, `"port":1`, "does not allow port 1", "ports of the session's template"},
		"/s/alice/p/" + closed + "/": {"502", `"reason":"refused"`, `"port":` + closed, "session alice, port " + closed, "nothing listens"},
	} {
		resp, body := f.get(path, "Accept", "application/json")
		for _, text := range want[1:] {
			if !strings.HasPrefix(resp.Status, want[0]) || !strings.Contains(body, text) {
				t.Errorf("%s: %s %s, want %s", path, resp.Status, body, text)
			}
		}
	}
	c, _, err := websocket.Dial(t.Context(), "ws://"+f.addr+"/s/alice/p/"+other+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if _, b, err := c.Read(t.Context()); err != nil || string(b) != "other" {
		t.Errorf("WebSocket: %q, %v", b, err)
	}
}

// A port that no template lists starts no session.
func TestPortOfNoTemplateBootsNothing(t *testing.T) {
	f := start(t, nil, withPorts)
	f.failWith(errors.New("must not be asked"))
	resp, body := f.get("/s/alice/p/22/")
	if resp.StatusCode != 404 || !strings.Contains(body, "no template allows port 22") {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// The node that has a session decides about its ports. A client cannot name a port to it.
func TestPortsOfASessionElsewhere(t *testing.T) {
	own, other, route := session(t)
	closed := portOf(t, closedPort(t))
	f := newFleet(t)
	owner := f.join("owner", func(http.ResponseWriter, *http.Request) {}, nil)
	owner.local.set(func(l *fakeLocal) {
		l.address, l.ports = route.Address, holdfast.Ports{List: []int{number(t, other), number(t, closed)}}
	})
	first := f.join("first", nil, func(c *Config) { c.Ports = holdfast.Ports{All: true} })
	first.leadTo(owner)
	for path, want := range map[string]string{
		"/s/alice/x":                 "own /x /s/alice",
		"/s/alice/p/" + own + "/x":   "own /x /s/alice/p/" + own,
		"/s/alice/p/" + other + "/x": "other /x /s/alice/p/" + other,
	} {
		for range 2 { // the second time with a header of the gateways
			if resp, body := first.get(path, "X-Holdfast-Session", "alice:1"); body != want {
				t.Errorf("%s: %s %q", path, resp.Status, body)
			}
		}
	}
	if resp, body := first.do(first.request("POST", "/s/alice/p/1/", strings.NewReader("body"))); resp.StatusCode != 404 || !strings.Contains(body, "does not allow port 1") {
		t.Errorf("a port that is not listed: %s %s", resp.Status, body)
	}
	if n := valueOf(t, owner.gateway.metrics.peerForwardRefusals.WithLabelValues(refusedPort)); n != 1 {
		t.Errorf("%v refusals counted", n)
	}
	if n := first.refusals(); n != 0 {
		t.Errorf("the directory was doubted %d times for a port", n)
	}
	if resp, body := first.get("/s/alice/p/" + closed + "/"); resp.StatusCode != 502 || !strings.Contains(body, "session alice, port "+closed) {
		t.Errorf("a closed port: %s %s", resp.Status, body)
	}
	if n := first.refusals(); n != 0 {
		t.Errorf("the directory was doubted %d times for a closed port", n)
	}
	c, _, err := websocket.Dial(t.Context(), "ws://"+first.addr+"/s/alice/p/"+other+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if _, b, err := c.Read(t.Context()); err != nil || string(b) != "other" {
		t.Errorf("WebSocket: %q, %v", b, err)
	}
}

func TestForwardedTargets(t *testing.T) {
	for text, want := range map[string]target{
		"alice":       {key: "alice"},
		"alice:3000":  {key: "alice", port: 3000},
		"3000-a:1":    {key: "3000-a", port: 1},
		"alice:":      {},
		"alice:0":     {},
		"alice:65536": {},
		"alice:080":   {},
		"alice:-1":    {},
		"alice:+1":    {},
		"alice:1:2":   {},
		"alice: 1":    {},
		":1":          {},
		"":            {},
	} {
		got, err := parseForwardedTarget(text)
		if (err == nil) != (want != target{}) || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if err == nil && forwardedTarget(got.key, got.port) != text {
			t.Errorf("%q is sent as %q", text, forwardedTarget(got.key, got.port))
		}
	}
	if _, err := holdfast.ParseSessionKey(forwardedTarget("alice", 3000)); err == nil {
		t.Error("a node without ports would serve the own port")
	}
}

// A token opens the template's own port, or the ports that it names.
func TestTokensWithPorts(t *testing.T) {
	own, other, route := session(t)
	i := newIssuer(t)
	f := start(t, nil, func(c *Config) {
		withPorts(c)
		i.config(c)
		c.Ports = holdfast.Ports{All: true}
	})
	route.Left, route.Ports = f.left, holdfast.Ports{All: true}
	f.sessions.set(func(context.Context, holdfast.SessionKey) (holdfast.Route, error) { return route, nil })
	paths := []string{"/s/alice/", "/s/alice/p/" + own + "/", "/s/alice/p/" + other + "/"}
	for _, tt := range []struct {
		ports holdfast.Ports
		want  [3]int
	}{
		{holdfast.Ports{}, [3]int{200, 403, 403}},
		{holdfast.Ports{List: []int{0}}, [3]int{200, 403, 403}},
		{holdfast.Ports{List: []int{number(t, other)}}, [3]int{403, 403, 200}},
		{holdfast.Ports{List: []int{0, number(t, own)}}, [3]int{200, 200, 403}},
		{holdfast.Ports{All: true}, [3]int{200, 200, 200}},
	} {
		text := i.signPorts(time.Hour, tt.ports, "alice")
		for n, path := range paths {
			if resp, body := f.get(path, "Authorization", "Bearer "+text); resp.StatusCode != tt.want[n] {
				t.Errorf("%+v, %s: %s, want %d: %s", tt.ports, path, resp.Status, tt.want[n], body)
			}
		}
	}
	resp, _ := f.get("/s/alice/p/" + other + "/?holdfast_token=" + i.signPorts(time.Hour, holdfast.Ports{List: []int{number(t, other)}}, "alice"))
	if c := resp.Header.Get("Set-Cookie"); resp.StatusCode != 303 || !strings.Contains(c, "Path=/s/alice/p/"+other+"/;") {
		t.Errorf("a link to a port: %s, cookie %q", resp.Status, c)
	}
	if resp, body := f.get("/s/alice/p/" + other + "/"); resp.StatusCode != 401 {
		t.Errorf("without a token: %s %s", resp.Status, body)
	}
}
