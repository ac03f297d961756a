package dashboard_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestLoopbackNeedsNoLoginAndOnlyLooks(t *testing.T) {
	s := serve(t, false)
	s.start(t, "alice")
	if r := s.get(t, "/"); r.status != http.StatusOK || !strings.Contains(r.body, "read-only") {
		t.Errorf("the first page: status %d, %s", r.status, r.body)
	}
	if r := s.get(t, "/sessions/alice"); strings.Contains(r.body, "<button>Replace") {
		t.Error("a reader sees a button")
	}
	if r := s.do(t, "POST", "/sessions/alice/stop", nil); r.status != http.StatusForbidden {
		t.Errorf("a stop by a reader: status %d", r.status)
	}
	if r := s.get(t, "/", "Host: evil.example"); r.status != http.StatusMisdirectedRequest {
		t.Errorf("another name for this address: status %d", r.status)
	}
	if r := s.get(t, "/login"); r.status != http.StatusSeeOther {
		t.Errorf("a login without tokens: status %d", r.status)
	}
	if _, err := s.back.Session(t.Context(), "alice"); err != nil {
		t.Error(err)
	}
}

func TestALoginHasItsTokensRights(t *testing.T) {
	for _, tt := range []struct {
		token string
		stop  int
	}{{readToken, http.StatusForbidden}, {adminToken, http.StatusOK}} {
		s := serve(t, true)
		s.start(t, "alice")
		if r := s.get(t, "/sessions?q=x"); r.status != http.StatusSeeOther || r.header.Get("Location") != "/login?next=%2Fsessions%3Fq%3Dx" {
			t.Errorf("without a login: status %d, to %s", r.status, r.header.Get("Location"))
		}
		for _, path := range []string{"/live/fleet", "/v1/sessions", "/metrics"} {
			if r := s.get(t, path); r.status != http.StatusUnauthorized {
				t.Errorf("%s without a login: status %d", path, r.status)
			}
		}
		r := s.login(t, tt.token)
		if r.status != http.StatusSeeOther || r.header.Get("Location") != "/sessions" {
			t.Fatalf("login: status %d, to %s", r.status, r.header.Get("Location"))
		}
		cookie := r.header.Get("Set-Cookie")
		for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} {
			if !strings.Contains(cookie, want) {
				t.Errorf("the cookie is %s, without %s", cookie, want)
			}
		}
		if strings.Contains(cookie, tt.token) {
			t.Error("the token is in the cookie")
		}
		for _, path := range []string{"/", "/v1/sessions"} {
			if r := s.get(t, path); r.status != http.StatusOK {
				t.Errorf("%s with a login: status %d", path, r.status)
			}
		}
		if r := s.do(t, "POST", "/sessions/alice/stop", nil); r.status != tt.stop {
			t.Errorf("a stop with %s: status %d, want %d: %s", tt.token, r.status, tt.stop, r.body)
		}
		if r := s.do(t, "POST", "/logout", nil); r.status != http.StatusSeeOther {
			t.Errorf("logout: status %d", r.status)
		}
		// The cookie from before does not count: the login has ended.
		name, value, _ := strings.Cut(strings.Split(cookie, ";")[0], "=")
		if r := s.get(t, "/", "Cookie: "+name+"="+value); r.status != http.StatusSeeOther {
			t.Errorf("after the logout: status %d", r.status)
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	s := serve(t, true)
	s.start(t, "alice")
	for _, token := range []string{"", "short", adminToken[1:], strings.Repeat("x", 600), adminToken + readToken} {
		if r := s.login(t, token); r.status != http.StatusUnauthorized || r.header.Get("Set-Cookie") != "" {
			t.Errorf("login with %.20q: status %d, cookie %q", token, r.status, r.header.Get("Set-Cookie"))
		}
	}
	if r := s.login(t, adminToken); r.status != http.StatusSeeOther {
		t.Fatalf("login: status %d", r.status)
	}
	for _, tt := range []struct {
		name, method, path string
		form               url.Values
		headers            []string
		want               int
	}{
		{"stop by GET", "GET", "/sessions/alice/stop", nil, nil, http.StatusNotFound},
		{"logout by GET", "GET", "/logout", nil, nil, http.StatusNotFound},
		{"another site's form", "POST", "/sessions/alice/stop", nil, []string{"Sec-Fetch-Site: cross-site", "Origin: https://evil.example"}, http.StatusForbidden},
		{"a session's page", "POST", "/sessions/alice/stop", nil, []string{"Sec-Fetch-Site: same-site", "Origin: http://127.0.0.1:7070"}, http.StatusForbidden},
		{"an old browser's form of another site", "POST", "/sessions/alice/stop", nil, []string{"Sec-Fetch-Site: ", "Origin: https://evil.example"}, http.StatusForbidden},
		{"a form without an origin", "POST", "/sessions/alice/stop", nil, []string{"Sec-Fetch-Site: ", "Origin: "}, http.StatusForbidden},
		{"the API by another site's form", "POST", "/v1/sessions/alice/stop", nil, []string{"Sec-Fetch-Site: cross-site", "Content-Type: "}, http.StatusForbidden},
		{"the API by a form without an origin", "POST", "/v1/sessions/alice/stop", nil, []string{"Sec-Fetch-Site: ", "Origin: ", "Content-Type: "}, http.StatusForbidden},
		{"a login of another site", "POST", "/login", url.Values{"token": {readToken}}, []string{"Sec-Fetch-Site: cross-site"}, http.StatusForbidden},
		{"a page inside a session's", "GET", "/", nil, []string{"Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, http.StatusForbidden},
		{"a page read by another site", "GET", "/", nil, []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"}, http.StatusForbidden},
		{"a link on another site", "GET", "/", nil, []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, http.StatusOK},
		{"a form too large", "POST", "/sessions/alice/stop", url.Values{"x": {strings.Repeat("x", 9000)}}, nil, http.StatusRequestEntityTooLarge},
		{"a login too large", "POST", "/login", url.Values{"token": {strings.Repeat("x", 9000)}}, nil, http.StatusRequestEntityTooLarge},
		{"a body that is not a form", "POST", "/sessions/alice/stop", url.Values{}, []string{"Content-Type: multipart/form-data"}, http.StatusUnsupportedMediaType},
		{"no such action", "POST", "/sessions/alice/eat", nil, nil, http.StatusNotFound},
		{"a bad key", "POST", "/sessions/Alice/stop", nil, nil, http.StatusBadRequest},
		{"a page of a bad key", "GET", "/sessions/-a", nil, nil, http.StatusBadRequest},
		{"no such session", "POST", "/sessions/bob/stop", nil, nil, http.StatusNotFound},
		{"no such file", "GET", "/assets/0/page.css", nil, nil, http.StatusNotFound},
		{"a file outside", "GET", "/assets/0/..%2fpages.go", nil, nil, http.StatusNotFound},
	} {
		if r := s.do(t, tt.method, tt.path, tt.form, tt.headers...); r.status != tt.want {
			t.Errorf("%s: status %d, want %d: %.300s", tt.name, r.status, tt.want, r.body)
		}
	}
	if _, err := s.back.Session(t.Context(), "alice"); err != nil {
		t.Errorf("one of the requests above stopped the session: %v", err)
	}
}

func TestLoginLeadsNowhereElse(t *testing.T) {
	for _, next := range []string{"https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil", "evil", "/%2fevil.example/..", "javascript:alert(1)", "/\tevil"} {
		s := serve(t, true)
		r := s.do(t, http.MethodPost, "/login", url.Values{"token": {adminToken}, "next": {next}})
		to := r.header.Get("Location")
		if r.status != http.StatusSeeOther || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.Contains(to, "\\") {
			t.Errorf("next=%q leads to %q (status %d)", next, to, r.status)
		}
	}
}

// The page escapes what a session reports.
func TestAnswersCarryThePolicy(t *testing.T) {
	s := serve(t, false)
	for _, path := range []string{"/", "/sessions", "/sessions/alice", "/sessions/-", "/login"} {
		h := s.get(t, path).header
		policy := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: the policy is %q", path, policy)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin"} {
			if h.Get(name) != want {
				t.Errorf("%s: %s is %q", path, name, h.Get(name))
			}
		}
	}
	if r := s.get(t, "/?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E"); strings.Contains(r.body, "<script>alert") {
		t.Error("the search text is not escaped")
	}
}
