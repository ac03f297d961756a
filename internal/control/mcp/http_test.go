package mcp_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/control/api"
	"holdfast/internal/control/mcp"
)

const (
	adminToken = "0123456789abcdef"
	readToken  = "fedcba9876543210"
)

// overHTTP serves a desk's tools with two tokens and returns their address.
func (d *desk) overHTTP() string {
	d.t.Helper()
	dir := d.t.TempDir()
	files := api.TokenFiles{Admin: filepath.Join(dir, "admin"), Read: filepath.Join(dir, "read")}
	for file, text := range map[string]string{files.Admin: "ops " + adminToken, files.Read: "viewer " + readToken} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			d.t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	tokens, err := api.OpenTokens(files, log)
	if err != nil {
		d.t.Fatal(err)
	}
	l, err := mcp.Listen(d.t.Context(), "127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.server.ServeListener(ctx, l, tokens, log) }()
	d.t.Cleanup(func() {
		cancel()
		if err := within(d.t, ended); err != nil {
			d.t.Error(err)
		}
	})
	return "http://" + l.Addr().String() + mcp.Path
}

// bearer adds headers to each request.
type bearer struct{ header http.Header }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range b.header {
		r.Header[name] = values
	}
	return http.DefaultTransport.RoundTrip(r)
}

func dial(t *testing.T, url, token string) *sdk.ClientSession {
	t.Helper()
	h := &http.Client{Transport: bearer{http.Header{"Authorization": {"Bearer " + token}}}}
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: h}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close() // the server keeps nothing for it
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return c
}

// Over HTTP a token has the rights that it has in the API, and the audit log names it.
func TestTokensOverHTTP(t *testing.T) {
	d := newDesk(t, mcp.Options{AllowWrite: true})
	url := d.overHTTP()
	admin, reader := dial(t, url, adminToken), dial(t, url, readToken)
	if got := strings.Join(names(t, reader), " "); got != readTools {
		t.Errorf("for reading: %s", got)
	}
	if got := len(names(t, admin)); got != len(strings.Fields(readTools+writeTools)) {
		t.Errorf("for changes: %d tools", got)
	}
	var s struct{ State string }
	if call(t, admin, "session_start", args{"key": "alice"}, &s); s.State != "ready" {
		t.Errorf("%+v", s)
	}
	if _, err := reader.CallTool(t.Context(), &sdk.CallToolParams{Name: "session_stop", Arguments: args{"key": "alice"}}); err == nil {
		t.Error("a token for reading has stopped a session")
	}
	var list page
	if call(t, reader, "session_list", nil, &list); list.Matching != 1 {
		t.Errorf("%+v", list)
	}
	if log := d.logged(); !strings.Contains(log, `via="mcp, token ops" session=alice`) || strings.Contains(log, adminToken) {
		t.Errorf("audit log %s", log)
	}
	// Without leave to write, no token gives it.
	if got := sorted(names(t, dial(t, newDesk(t, mcp.Options{}).overHTTP(), adminToken))); got != sorted(strings.Fields(readTools+fileTools)) {
		t.Errorf("without leave to write: %s", got)
	}
}

// A request without a valid token, from a web page, or for another host is refused
// before any of it is read.
func TestHTTPRefuses(t *testing.T) {
	url := newDesk(t, mcp.Options{AllowWrite: true}).overHTTP()
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for name, one := range map[string]struct {
		header string // Name: value, besides the usual ones
		method string
		path   string
		body   string
		status int
		has    string
	}{
		"accepted":              {"", "POST", "", ping, 200, `"id":1`},
		"no token":              {"Authorization: ", "POST", "", ping, 401, "bearer token is missing"},
		"wrong token":           {"Authorization: Bearer 0123456789abcdee", "POST", "", ping, 401, "unauthorized"},
		"token not as bearer":   {"Authorization: Basic 0123456789abcdef", "POST", "", ping, 401, "unauthorized"},
		"another site's page":   {"Origin: https://evil.example", "POST", "", ping, 403, "cross_origin"},
		"a page, new browser":   {"Sec-Fetch-Site: cross-site", "POST", "", ping, 403, "cross_origin"},
		"a rebound name":        {"Host: evil.example:7072", "POST", "", ping, 421, "bad_host"},
		"a rebound name's page": {"Host: evil.example", "GET", "", "", 421, "bad_host"},
		"another path":          {"", "POST", "/v1/sessions", ping, 404, "not_found"},
		"a stream of events":    {"", "GET", "", "", 405, "Method Not Allowed"},
		"too much":              {"", "POST", "", ping + strings.Repeat(" ", 2<<20), 413, "too_large"},
		"not JSON":              {"", "POST", "", "{", 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			to := url
			if one.path != "" {
				to = strings.Replace(url, mcp.Path, one.path, 1)
			}
			r, err := http.NewRequestWithContext(t.Context(), one.method, to, strings.NewReader(one.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+adminToken)
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Accept", "application/json, text/event-stream")
			if k, v, _ := strings.Cut(one.header, ": "); k == "Host" {
				r.Host = v
			} else if k != "" {
				r.Header.Set(strings.TrimSuffix(k, ":"), v)
			}
			c := &http.Client{Transport: &http.Transport{}}
			defer c.CloseIdleConnections()
			resp, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != one.status || !strings.Contains(string(b), one.has) {
				t.Errorf("status %d, %s, %v", resp.StatusCode, b, err)
			}
			if resp.StatusCode == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("headers %v", resp.Header)
			}
		})
	}
	for _, address := range []string{"0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:0", "example.com:80", "127.0.0.1"} {
		if l, err := mcp.Listen(t.Context(), address); !errors.Is(err, mcp.ErrAddress) {
			t.Errorf("%s: %v, %v", address, l, err)
		}
	}
}
