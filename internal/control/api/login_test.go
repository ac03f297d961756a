package api_test

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/control/api"
)

const loginToken = "a-token-to-log-in-with"

// logIn logs a browser in and returns its cookie.
func logIn(t *testing.T, l *api.Logins, secure bool) *http.Cookie {
	t.Helper()
	r, w := httptest.NewRequest(http.MethodPost, "/login", nil), httptest.NewRecorder()
	if secure {
		r.TLS = &tls.ConnectionState{}
	}
	if err := l.Login(w, r, loginToken); err != nil {
		t.Fatal(err)
	}
	return w.Result().Cookies()[0]
}

func mayLook(o api.Options, c *http.Cookie, secure bool) bool {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.AddCookie(c)
	if secure {
		r.TLS = &tls.ConnectionState{}
	}
	_, err := api.CallerOf(o, r)
	return err == nil
}

func TestLoginsEndWithTheirToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("eve " + loginToken + "\n")
	var log bytes.Buffer
	tokens, err := api.OpenTokens(api.TokenFiles{Admin: file}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	o := api.Options{Tokens: tokens, Logins: api.NewLogins(tokens, slog.New(slog.NewJSONHandler(&log, nil)))}
	c := logIn(t, o.Logins, false)
	if !mayLook(o, c, false) {
		t.Fatal("a login does not count")
	}
	if err := o.Logins.Login(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/login", nil), "a-token-of-another-agent"); err == nil {
		t.Error("a wrong token logs in")
	}
	for _, want := range []string{`"act":"login","caller":"token eve"`, `"act":"login","caller":"unknown"`, `"result":"unauthorized"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the audit log has no %s:\n%s", want, &log)
		}
	}
	if strings.Contains(log.String(), loginToken) || strings.Contains(log.String(), c.Value) {
		t.Error("the audit log has a secret in it")
	}
	write("eve another-token-than-before\n")
	for limit := time.Now().Add(time.Minute); mayLook(o, c, false); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the login counts without its token")
		}
	}
}

// Over TLS the cookie is one that no other host can set, and the plain cookie does not
// count.
func TestLoginsOverTLSAreOfThisHostOnly(t *testing.T) {
	all := tokens(t, loginToken, "")
	o := api.Options{Tokens: all, Logins: api.NewLogins(all, slog.New(slog.DiscardHandler))}
	c := logIn(t, o.Logins, true)
	if c.Name != "__Host-"+api.LoginCookie || !c.Secure || !c.HttpOnly || c.Domain != "" || c.Path != "/" {
		t.Errorf("the cookie is %v", c)
	}
	if !mayLook(o, c, true) {
		t.Error("it does not count")
	}
	c.Name = api.LoginCookie
	if mayLook(o, c, true) {
		t.Error("a cookie that another host may have set counts")
	}
}

// More logins than are kept end the oldest.
func TestLoginsAreBounded(t *testing.T) {
	all := tokens(t, loginToken, "")
	o := api.Options{Tokens: all, Logins: api.NewLogins(all, slog.New(slog.DiscardHandler))}
	first := logIn(t, o.Logins, false)
	var last *http.Cookie
	for range 1024 {
		last = logIn(t, o.Logins, false)
	}
	if mayLook(o, first, false) || !mayLook(o, last, false) {
		t.Error("the first login of 1025 counts, or the last one does not")
	}
}
