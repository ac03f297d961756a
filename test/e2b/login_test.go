package e2b

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/control/api/client"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// loginService is the login service of examples/login, built from its source.
func loginService() sdk { return sdk{"oauth2-proxy", "7.15.6"} }

// Caddy lets users with a login through, each to their own session.
func TestExampleOfALogin(t *testing.T) {
	labtest.NeedLong(t, "it builds oauth2-proxy; test/deb runs docs/guide/login.md with nginx")
	n := newNodeOn(t, labtest.Engine(t), labtest.FreePort(t))
	n.gatewayKeys = ", domain: sessions.internal"
	n.template = `    command: [sh, -c, "mkdir -p /www/cgi-bin; printf '#!/bin/sh\\necho; echo $HOLDFAST_SESSION has cookie $HTTP_COOKIE' >/www/cgi-bin/session; chmod +x /www/cgi-bin/session; exec httpd -f -p 8080 -h /www"]`
	n.configure("", "workspace", "[]")
	n.run()

	users := filepath.Join(n.dir, "users")
	hash := sha1.Sum([]byte("secret of alice")) // as htpasswd -s
	if err := os.WriteFile(users, []byte("alice:{SHA}"+base64.StdEncoding.EncodeToString(hash[:])+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	login, public := labtest.FreePort(t), "http://"+labtest.FreePort(t)
	runBeside(t, exec.Command(filepath.Join(loginService().need(t), "oauth2-proxy"), "--config", "../../examples/login/oauth2-proxy.cfg",
		"--http-address", login, "--htpasswd-file", users, "--cookie-secure=false", "--cookie-secret", "0123456789abcdef0123456789abcdef"))
	caddy := exec.Command("caddy", "run", "--adapter", "caddyfile", "--config", "../../examples/login/Caddyfile")
	caddy.Env = append(os.Environ(), "ADDRESS="+public, "LOGIN="+login, "GATEWAY="+n.gateway, "HOME="+n.dir)
	runBeside(t, caddy)

	const page = "/cgi-bin/session"
	stranger, alice := browser(t), browser(t)
	poll.Until(t, "the login page is served", func() bool {
		res, err := stranger.Get(public + page)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusFound && res.Header.Get("Location") == "/oauth2/sign_in?rd="+page
	})
	enter := func(password string) *http.Response {
		res, err := alice.PostForm(public+"/oauth2/sign_in", url.Values{"username": {"alice"}, "password": {password}, "rd": {page}})
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res
	}
	if res := enter("a guess"); res.StatusCode == http.StatusFound {
		t.Error("a wrong password is taken")
	}
	if all := sessionsOf(t, n.client()); len(all) > 0 {
		t.Errorf("without a login sessions begin: %v", all)
	}
	if res := enter("secret of alice"); res.StatusCode != http.StatusFound || res.Header.Get("Location") != page {
		t.Fatalf("a login is answered with %s, to %q", res.Status, res.Header.Get("Location"))
	}
	for _, name := range []string{"", "bob"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, public+page, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Cookie", "mine=1")
		if name != "" {
			req.Header.Set("X-Auth-Request-User", name)
		}
		res, err := alice.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if got := strings.TrimSuffix(strings.TrimSpace(string(text)), ";"); err != nil || got != "alice has cookie mine=1" {
			t.Errorf("as %q: %s: %q, %v", name, res.Status, text, err)
		}
		req.Header.Del("Cookie")
		res, err = stranger.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusFound {
			t.Errorf("as %q without a login: %s", name, res.Status)
		}
	}
	if all := sessionsOf(t, n.client()); len(all) != 1 || all[0] != "alice" {
		t.Errorf("sessions %v", all)
	}
}

// browser has cookies, and does not follow redirects.
func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// runBeside runs a program until the test ends.
func runBeside(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended, and its output says why
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", cmd.Path, &out)
		}
	})
}

// sessionsOf returns the keys of all sessions.
func sessionsOf(t *testing.T, c *client.Client) (keys []string) {
	t.Helper()
	all, err := c.Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		keys = append(keys, string(s.Key))
	}
	return keys
}
