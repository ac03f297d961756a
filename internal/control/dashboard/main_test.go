package dashboard_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/dashboard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	adminToken = "an-admin-token-of-a-test"
	readToken  = "a-reading-token-of-a-test"
)

// site is a dashboard behind a real HTTP server until the test ends.
type site struct {
	*httptest.Server
	back   *apitest.Backend
	client *http.Client // with a browser's cookies
}

// serve starts a site, with tokens or without.
func serve(t *testing.T, withTokens bool) *site {
	t.Helper()
	return serveWith(t, withTokens, dashboard.Options{})
}

// serveWith is serve with more options.
func serveWith(t *testing.T, withTokens bool, more dashboard.Options) *site {
	t.Helper()
	s := &site{back: &apitest.Backend{}}
	log := slog.New(slog.DiscardHandler)
	o := api.Options{Log: log}
	if withTokens {
		dir := t.TempDir()
		files := api.TokenFiles{Admin: filepath.Join(dir, "admin"), Read: filepath.Join(dir, "read")}
		for path, token := range map[string]string{files.Admin: adminToken, files.Read: readToken} {
			if err := os.WriteFile(path, []byte("eve "+token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if o.Tokens, err = api.OpenTokens(files, log); err != nil {
			t.Fatal(err)
		}
		o.Logins = api.NewLogins(o.Tokens, log)
	}
	more.Access, more.API, more.Log = o, api.New(s.back.Parts(), o), log
	more.SessionURL = func(_ *http.Request, key holdfast.SessionKey) string {
		return "http://127.0.0.1:7070/s/" + string(key) + "/"
	}
	d, err := dashboard.New(dashboard.SourceOf(s.back.Parts()), more)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	s.Server = httptest.NewServer(d.Handler())
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.client = &http.Client{Jar: jar, Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		s.CloseClientConnections()
		s.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request as a browser does from a page of the dashboard. More headers are
// NAME: VALUE, and replace the default ones.
func (s *site) do(t *testing.T, method, path string, form url.Values, headers ...string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", s.URL)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if r.Header.Set(name, value); value == "" {
			r.Header.Del(name)
		}
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	res, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

func (s *site) get(t *testing.T, path string, headers ...string) reply {
	t.Helper()
	return s.do(t, http.MethodGet, path, nil, headers...)
}

func (s *site) login(t *testing.T, token string) reply {
	t.Helper()
	return s.do(t, http.MethodPost, "/login", url.Values{"token": {token}, "next": {"/sessions"}})
}

// start makes the agent start sessions.
func (s *site) start(t *testing.T, keys ...holdfast.SessionKey) {
	t.Helper()
	for _, key := range keys {
		if _, err := s.back.StartSession(t.Context(), key, ""); err != nil {
			t.Fatal(err)
		}
	}
}
