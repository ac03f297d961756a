package api_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"holdfast/internal/control/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent is an *apitest.Backend, perhaps with other parts.
type agent interface{ Parts() api.Parts }

// serve serves with a real HTTP server on loopback until the test ends.
func serve(t *testing.T, b agent, o api.Options) *httptest.Server {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := httptest.NewServer(api.New(b.Parts(), o))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// tokens opens the tokens of two files; a text of "" means no file.
func tokens(t *testing.T, admin, read string) *api.Tokens {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) string {
		if text == "" {
			return ""
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	all, err := api.OpenTokens(api.TokenFiles{Admin: file("admin", admin), Read: file("read", read)}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

type reply struct {
	status int
	header http.Header
	body   string
}

// call sends one request; headers are given as "Name: value".
func call(t *testing.T, s *httptest.Server, method, path, body string, headers ...string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		}
		r.Header.Set(name, value)
	}
	c := s.Client()
	defer c.CloseIdleConnections()
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return reply{resp.StatusCode, resp.Header, ""}
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(b)}
}
