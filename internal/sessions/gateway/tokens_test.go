package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/internal/sessions/gateway/token"
	"holdfast/test/poll"
)

// issuer signs tokens for the gateway of a test.
type issuer struct {
	t      *testing.T
	file   string
	secret token.Secret
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t, file: filepath.Join(t.TempDir(), "tokens")}
	i.secret = i.newSecret()
	i.write(i.secret)
	return i
}

func (i *issuer) newSecret() token.Secret {
	i.t.Helper()
	s, err := token.NewSecret("")
	if err != nil {
		i.t.Fatal(err)
	}
	return s
}

// write replaces the secrets of the gateway.
func (i *issuer) write(secrets ...token.Secret) {
	i.t.Helper()
	var lines []string
	for _, s := range secrets {
		lines = append(lines, s.Line())
	}
	if err := os.WriteFile(i.file+".new", []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		i.t.Fatal(err)
	}
	if err := os.Rename(i.file+".new", i.file); err != nil {
		i.t.Fatal(err)
	}
}

// sign returns a token for keys that was issued an hour ago and expires after ttl.
func (i *issuer) sign(ttl time.Duration, keys ...holdfast.SessionKey) string {
	i.t.Helper()
	return i.signPorts(ttl, holdfast.Ports{}, keys...)
}

func (i *issuer) signPorts(ttl time.Duration, ports holdfast.Ports, keys ...holdfast.SessionKey) string {
	i.t.Helper()
	text, err := token.Sign(i.secret, token.Grant{Keys: keys, Ports: ports, IssuedAt: time.Now().Add(-time.Hour), Expires: time.Now().Add(ttl)})
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

func (i *issuer) config(c *Config) { c.TokensFile = i.file }

// tell returns everything that reached the session.
func tell(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s\n", r.Method, r.RequestURI)
	_ = r.Header.Write(w)
}

func TestBearerTokenIsRemoved(t *testing.T) {
	i := newIssuer(t)
	f := start(t, tell, i.config)
	good := i.sign(time.Hour, "alice")
	for _, c := range []struct {
		name   string
		header []string
		see    string
	}{
		{"bearer", []string{"Authorization", "Bearer " + good}, ""},
		{"spelled otherwise", []string{"Authorization", "bearer  " + good}, ""},
		{"cookie", []string{"Cookie", "holdfast_token=" + good}, ""},
		{"among others", []string{"Cookie", `a=1; holdfast_token=` + good + `; b="2"`}, `Cookie: a=1; b="2"`},
		{"after a neighbour's", []string{"Cookie", "holdfast_token=theirs; holdfast_token=" + good}, ""},
		{"the session's own login", []string{"Cookie", "holdfast_token=" + good, "Authorization", "Basic YTpi"}, "Authorization: Basic YTpi"},
		{"the session's own token", []string{"Cookie", "holdfast_token=" + good, "Authorization", "Bearer mine"}, "Authorization: Bearer mine"},
		{"a referer with a token", []string{"Authorization", "Bearer " + good, "Referer", "http://x.test/?holdfast_token=" + good}, ""},
	} {
		resp, body := f.get("/s/alice/x?y=1", c.header...)
		if resp.StatusCode != 200 || !strings.HasPrefix(body, "GET /x?y=1\n") || !strings.Contains(body, c.see) {
			t.Errorf("%s: %d %s", c.name, resp.StatusCode, body)
		}
		if strings.Contains(body, good) || strings.Contains(body, "holdfast_token") || c.see == "" && (strings.Contains(body, "Cookie") || strings.Contains(body, "Authorization")) {
			t.Errorf("%s: the session sees\n%s", c.name, body)
		}
	}
	resp, body := f.do(f.request("POST", "/s/alice/?a=1&holdfast_token="+good, nil, "Authorization", "Bearer "+good))
	if resp.StatusCode != 200 || !strings.HasPrefix(body, "POST /?a=1\n") {
		t.Errorf("a second token in the URL: %d %s", resp.StatusCode, body)
	}
}

func TestNoEntryWithoutAToken(t *testing.T) {
	i, other := newIssuer(t), newIssuer(t)
	f := start(t, nil, i.config)
	f.sessions.set(func(context.Context, holdfast.SessionKey) (holdfast.Route, error) {
		t.Error("a session was acquired")
		return holdfast.Route{}, holdfast.ErrNotFound
	})
	good, late := i.sign(time.Hour, "alice"), i.sign(-time.Minute, "alice")
	var said []string // answers to clients without a valid token
	for _, c := range []struct {
		name, method, path string
		header             []string
		status             int
		reason             string
	}{
		{"none", "GET", "/s/alice/", nil, 401, "token_missing"},
		{"a login of the session's", "GET", "/s/alice/", []string{"Authorization", "Basic YTpi"}, 401, "token_missing"},
		{"nonsense", "GET", "/s/alice/", []string{"Authorization", "Bearer hf1.x.y.z"}, 401, "token_invalid"},
		{"of another fleet", "GET", "/s/alice/", []string{"Authorization", "Bearer " + other.sign(time.Hour, "alice")}, 401, "token_invalid"},
		{"late", "GET", "/s/alice/", []string{"Authorization", "Bearer " + late}, 401, "token_expired"},
		{"late, as a cookie", "GET", "/s/alice/", []string{"Cookie", "holdfast_token=x; holdfast_token=" + late}, 401, "token_expired"},
		{"late, in the URL", "GET", "/s/alice/?holdfast_token=" + late, nil, 401, "token_expired"},
		{"too many cookies", "GET", "/s/alice/", []string{"Cookie", strings.Repeat("holdfast_token=x; ", maxTokenCookies) + "holdfast_token=" + good}, 401, "token_invalid"},
		{"posted in the URL", "POST", "/s/alice/?holdfast_token=" + good, nil, 401, "token_missing"},
		{"an upgrade in the URL", "GET", "/s/alice/?holdfast_token=" + good, []string{"Connection", "Upgrade", "Upgrade", "websocket"}, 401, "token_missing"},
		{"for another", "GET", "/s/bob/", []string{"Authorization", "Bearer " + good}, 403, "token_scope"},
		{"for another, in the URL", "GET", "/s/bob?holdfast_token=" + good, nil, 403, "token_scope"},
		{"for another, and a late one", "GET", "/s/bob/", []string{"Authorization", "Bearer " + good, "Cookie", "holdfast_token=" + late}, 403, "token_scope"},
	} {
		before := valueOf(t, f.gateway.metrics.errors.WithLabelValues(c.reason))
		resp, body := f.do(f.request(c.method, c.path, nil, append([]string{"Accept", "application/json"}, c.header...)...))
		if resp.StatusCode != c.status || valueOf(t, f.gateway.metrics.errors.WithLabelValues(c.reason)) != before+1 {
			t.Errorf("%s: %d, want %d counted as %s", c.name, resp.StatusCode, c.status, c.reason)
		}
		h := resp.Header
		if h.Get("Set-Cookie") != "" || h.Get("Location") != "" || h.Get("Referrer-Policy") != "no-referrer" || (h.Get("WWW-Authenticate") == "Bearer") != (c.status == 401) {
			t.Errorf("%s: %v", c.name, h)
		}
		if c.status == 401 {
			said = append(said, body)
		}
	}
	if all := slices.Compact(said); len(all) != 1 {
		t.Errorf("the answers differ by the error of the token: %q", all)
	}
}

// browser is a client with a cookie jar that follows redirects.
func (f *fixture) browser() *http.Client {
	jar, _ := cookiejar.New(nil) // returns no error without options
	return &http.Client{Transport: f.client.Transport, Timeout: patience, Jar: jar}
}

func visit(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestBrowserExchangesItsLinkForACookie(t *testing.T) {
	i := newIssuer(t)
	f := start(t, tell, i.config)
	both := i.sign(time.Hour, "alice", "bob")
	b, origin := f.browser(), "http://"+f.addr
	// The client sends the URL before the redirect as Referer, like older browsers.
	resp, body := visit(t, b, origin+"/s/alice/a//b?x=%zz&holdfast_token="+both+"&y;=2")
	if resp.StatusCode != 200 || !strings.HasPrefix(body, "GET /a//b?x=%zz&y;=2\n") || strings.Contains(body, "token") {
		t.Errorf("the link: %d %s", resp.StatusCode, body)
	}
	for path, want := range map[string]int{"/s/alice/c": 200, "/s/alice": 200, "/s/bob/": 401, "/s/alice-2/": 401} {
		if resp, body := visit(t, b, origin+path); resp.StatusCode != want {
			t.Errorf("then %s: %d, want %d: %s", path, resp.StatusCode, want, body)
		}
	}
	// An expired link does not lock out a client with a valid cookie.
	if resp, body := visit(t, b, origin+"/s/alice/?holdfast_token="+i.sign(-time.Minute, "alice")); resp.StatusCode != 200 || !strings.HasPrefix(body, "GET /\n") {
		t.Errorf("an old link: %d %s", resp.StatusCode, body)
	}
	// A link without the last slash causes one redirect, to a URL without the token.
	resp, _ = f.get("/s/bob?holdfast_token=" + both)
	if resp.StatusCode != 303 || resp.Header.Get("Location") != "/s/bob/" || len(resp.Cookies()) != 1 {
		t.Errorf("without slash: %d %v", resp.StatusCode, resp.Header)
	}
}

func TestCookieIsConfined(t *testing.T) {
	i := newIssuer(t)
	cert, key := certificate(t)
	for _, c := range []struct {
		name, scheme, host, at, path, cookie string
		change                               func(*Config)
	}{
		{"by path", "http", "", "/s/alice/x", "/s/alice/", "holdfast_token", func(*Config) {}},
		{"by host", "http", "alice.sessions.test", "/x", "/", "holdfast_token", func(c *Config) { c.Domain = "sessions.test" }},
		{"TLS", "https", "", "/s/alice/x", "/s/alice/", "holdfast_token", func(c *Config) { c.CertFile, c.KeyFile = cert, key }},
		{"TLS by host", "https", "alice.sessions.test", "/x", "/", "__Host-holdfast_token", func(c *Config) {
			c.CertFile, c.KeyFile, c.Domain = cert, key, "sessions.test"
		}},
	} {
		f := start(t, tell, func(cfg *Config) { i.config(cfg); c.change(cfg) })
		text := i.sign(time.Hour, "alice")
		req := f.request("GET", c.at+"?holdfast_token="+text, nil)
		req.URL.Scheme = c.scheme
		if c.host != "" {
			req.Host = c.host
		}
		resp, _ := f.do(req)
		if resp.StatusCode != 303 || resp.Header.Get("Location") != c.at || len(resp.Cookies()) != 1 {
			t.Fatalf("%s: %d %v", c.name, resp.StatusCode, resp.Header)
		}
		if h := resp.Header; h.Get("Referrer-Policy") != "no-referrer" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", c.name, h)
		}
		got := resp.Cookies()[0]
		if got.Name != c.cookie || got.Value != text || got.Path != c.path || got.Domain != "" || !got.HttpOnly || got.SameSite != http.SameSiteLaxMode ||
			got.Secure != (c.scheme == "https") || got.MaxAge < 3500 || got.MaxAge > 3600 || time.Until(got.Expires) > time.Hour {
			t.Errorf("%s: %s", c.name, got)
		}
		f.stop()
	}
}

// A page of a neighbouring host can set cookies for the whole domain, but not with the
// name that counts. It cannot displace the user's own cookie from those that are checked.
func TestNeighboursCookiesDoNotCount(t *testing.T) {
	i := newIssuer(t)
	cert, key := certificate(t)
	f := start(t, tell, func(c *Config) {
		i.config(c)
		c.CertFile, c.KeyFile, c.Domain = cert, key, "sessions.test"
	})
	good := i.sign(time.Hour, "alice")
	tossed := strings.Repeat("holdfast_token="+good+"; ", maxTokenCookies+1)
	for cookies, want := range map[string]int{tossed: 401, tossed + "__Host-holdfast_token=" + good: 200} {
		req := f.request("GET", "/", nil, "Cookie", cookies)
		req.URL.Scheme, req.Host = "https", "alice.sessions.test"
		if resp, body := f.do(req); resp.StatusCode != want || want == 200 && strings.Contains(body, "holdfast_token") {
			t.Errorf("%s: %s %s", cookies, resp.Status, body)
		}
	}
}

// The redirect stays on the requested host for every path.
func TestRedirectStaysHere(t *testing.T) {
	i := newIssuer(t)
	f := start(t, tell, func(c *Config) { i.config(c); c.Domain, c.Paths = "sessions.test", true })
	text := i.sign(time.Hour, "alice")
	base := &url.URL{Scheme: "http", Host: "alice.sessions.test", Path: "/s/alice/"}
	for _, path := range []string{
		"/", "//evil.test/x", "///evil.test", `/\evil.test`, `/\/evil.test`, "/%2Fevil.test", "/%5cevil.test", "/.//evil.test", "/..//evil.test",
		"/@evil.test", "/a/..//evil.test", "http://alice.sessions.test//evil.test/", "http://evil.test/s/alice//x",
	} {
		for _, query := range []string{"?holdfast_token=" + text, "?a=//evil.test&holdfast%5Ftoken=" + text} {
			c, _, resp := f.raw("GET " + path + query + " HTTP/1.1\r\nHost: alice.sessions.test\r\n\r\n")
			c.Close()
			loc := resp.Header.Get("Location")
			to, err := base.Parse(loc)
			if resp.StatusCode != 303 || err != nil || to.Host != base.Host || to.Scheme != "http" {
				t.Errorf("%s: %d to %q", path+query, resp.StatusCode, loc)
			}
			// Browsers read a backslash as a slash.
			if !strings.HasPrefix(loc, "/") || strings.HasPrefix(strings.ReplaceAll(loc, `\`, "/"), "//") || strings.Contains(loc, text) {
				t.Errorf("%s: to %q", path+query, loc)
			}
		}
	}
}

func TestWebSocketsNeedAToken(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string, change func(*Config)) {
		i := newIssuer(t)
		f := start(t, echoSocket, func(c *Config) {
			i.config(c)
			if change != nil {
				change(c)
			}
		})
		good := i.sign(time.Hour, "alice")
		exchange(t, f.webSocket(scheme, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + good}}}), 100)

		b := f.browser()
		visit(t, b, strings.Replace(scheme, "ws", "http", 1)+"://"+f.addr+"/s/alice/?holdfast_token="+good)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, _, err := websocket.Dial(ctx, scheme+"://"+f.addr+"/s/alice/ws", &websocket.DialOptions{HTTPClient: b})
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		exchange(t, c, 100)

		for _, path := range []string{"/s/alice/ws", "/s/alice/ws?holdfast_token=" + good} {
			_, resp, err := websocket.Dial(ctx, scheme+"://"+f.addr+path, &websocket.DialOptions{HTTPClient: f.client})
			if err == nil || resp == nil || resp.StatusCode != 401 {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
}

func TestSecretsAreRotatedUnderWay(t *testing.T) {
	i := newIssuer(t)
	f := start(t, tell, i.config)
	status := func(text string) int {
		resp, _ := f.get("/s/alice/", "Authorization", "Bearer "+text)
		return resp.StatusCode
	}
	old := i.secret
	byOld := i.sign(time.Hour, "alice")
	i.secret = i.newSecret()
	byNew := i.sign(time.Hour, "alice")
	if o, n := status(byOld), status(byNew); o != 200 || n != 401 {
		t.Errorf("before: %d and %d", o, n)
	}
	i.write(i.secret, old)
	poll.Until(t, "the new secret is valid", func() bool { return status(byNew) == 200 })
	if o := status(byOld); o != 200 {
		t.Errorf("the old secret beside the new one: %d", o)
	}
	i.write(i.secret)
	poll.Until(t, "the old secret is not valid", func() bool { return status(byOld) == 401 })
	if n := status(byNew); n != 200 {
		t.Errorf("after: %d", n)
	}
}

func TestTokensFileIsReadAtTheStart(t *testing.T) {
	i := newIssuer(t)
	cfg := DefaultConfig()
	i.config(&cfg)
	if err := os.Chmod(i.file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg, nil, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "gateway.tokens_file") || holdfast.HintOf(err) == "" {
		t.Errorf("a file that others can read: %v", err)
	}
	cfg.TokensFile = "/nowhere/tokens"
	if _, err := New(cfg, nil, nil, nil, nil); err == nil {
		t.Error("a missing file was accepted")
	}
}

// No spelling of a token in a query reaches the session, and the rest of the query is
// unchanged.
func FuzzTakeField(f *testing.F) {
	f.Add("a=1&holdfast_token=x&b=%zz")
	f.Add("holdfast_token")
	f.Add("holdfast%5ftoken=x&%68oldfast_token=y;z")
	f.Fuzz(func(t *testing.T, query string) {
		text, rest, found := takeField(query)
		if !found {
			if rest != query || text != "" {
				t.Fatalf("%q became %q", query, rest)
			}
		} else if len(rest) >= len(query) {
			t.Fatalf("%q became %q", query, rest)
		}
		if _, _, again := takeField(rest); again {
			t.Fatalf("%q became %q, which still has a token", query, rest)
		}
		values, _ := url.ParseQuery(rest)
		if values.Has(tokenField) && !strings.Contains(rest, ";") {
			t.Fatalf("a session would see %v", values)
		}
	})
}

// The login cookie of a dashboard on another port of the same host does not reach a
// session.
func TestALoginDoesNotReachASession(t *testing.T) {
	h := http.Header{"Cookie": {"a=1; holdfast_login=secret; b=2", "__Host-holdfast_login=secret"}}
	dropGatewayHeaders(h)
	if got := h.Values("Cookie"); len(got) != 1 || got[0] != "a=1; b=2" {
		t.Errorf("the session gets %q", got)
	}
}
