package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"holdfast/internal/sessions/gateway/token"
)

// A request carries its token in Authorization as a bearer token, in the cookie
// tokenCookie, or, in the first request of a browser, in the query field
// tokenField. The gateway exchanges the query field for the cookie.
const (
	tokenField  = "holdfast_token"
	tokenCookie = "holdfast_token"

	// hostCookie is the name of the cookie if sessions are hosts of one domain.
	// The page of one session cannot make browsers send a cookie of that name to
	// another (RFC 6265bis, 4.1.3.2). Browsers accept the name only over TLS and
	// for whole hosts.
	hostCookie = "__Host-" + tokenCookie
)

// cookieName returns the name of the cookie that counts. If a proxy terminated
// TLS, the gateway does not know it and uses tokenCookie.
func cookieName(t target, overTLS bool) string {
	if t.prefix == "" && overTLS {
		return hostCookie
	}
	return tokenCookie
}

// maxTokenCookies limits how many cookies of that name are checked. There are
// several if a page of a neighbouring host has set one (RFC 6265, 8.6).
const maxTokenCookies = 4

// deniedError reports a request without a valid token for its session. Its
// reason goes only to the log and the metrics.
type deniedError struct {
	reason string // the metrics' label, one of tokenReasons
	err    error
}

func (d *deniedError) Error() string { return d.err.Error() }
func (d *deniedError) Unwrap() error { return d.err }

// tokenReasons are the reasons of deniedError, from the worst token to the
// best.
var tokenReasons = []string{"token_missing", "token_invalid", "token_expired", "token_scope"}

// admitToken checks the token of a request for its session and removes it from
// the request, since a session must not see it. A token in the URL of a
// browser's request is answered with a redirect to the same URL without it, and
// a cookie; then answered is true. The error is a *deniedError.
func (g *Gateway) admitToken(w http.ResponseWriter, r *http.Request, t target) (answered bool, err error) {
	bearer := takeBearer(r.Header)
	cookies := takeCookies(r.Header, cookieName(t, r.TLS != nil))
	field, query, inURL := takeField(r.URL.RawQuery)
	r.URL.RawQuery = query
	takeReferer(r.Header)
	browses := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""

	if t.path == "" && !inURL {
		return false, nil // gets a redirect to the path with a slash, where the cookie counts
	}
	tokens := slices.Concat(bearer, cookies)
	if inURL && browses {
		tokens = slices.Concat([]string{field}, tokens)
	}
	text, grant, err := g.firstAllowed(t, tokens)
	if err != nil {
		return false, err
	}
	if !inURL || !browses {
		return false, nil
	}
	if text == field {
		http.SetCookie(w, cookieFor(text, grant, t, r))
	}
	unread(w, r)
	h := w.Header()
	h.Set("Location", sameOrigin(t, query))
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusSeeOther)
	return true, nil
}

// firstAllowed returns the first token that allows its bearer to connect to the
// target, or the error of the best token.
func (g *Gateway) firstAllowed(t target, tokens []string) (text string, grant token.Grant, err error) {
	best := &deniedError{"token_missing", errors.New("there is no token")}
	for _, text := range tokens {
		grant, err := g.tokens.Verify(text)
		if err == nil && grant.Allows(t.key, t.port) {
			return text, grant, nil
		}
		why := &deniedError{"token_invalid", err}
		switch {
		case err == nil:
			why = &deniedError{"token_scope", errors.New("the token is for other sessions or ports")}
		case errors.Is(err, token.ErrExpired):
			why = &deniedError{"token_expired", err}
		}
		if slices.Index(tokenReasons, why.reason) > slices.Index(tokenReasons, best.reason) {
			best = why
		}
	}
	return "", token.Grant{}, best
}

// cookieFor returns a cookie that browsers send only to the session: limited to
// its path, or to its host.
func cookieFor(text string, g token.Grant, t target, r *http.Request) *http.Cookie {
	return &http.Cookie{
		Name: cookieName(t, r.TLS != nil), Value: text,
		Path:    t.prefix + "/",
		Expires: g.Expires, MaxAge: max(1, int(time.Until(g.Expires).Seconds())),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil,
	}
}

// sameOrigin returns the reference that leads a browser to the target's own URL
// with another query. It has no host, so it cannot lead to another one: a path
// that begins with two slashes would be read as a host (RFC 3986, 4.2), so "/."
// is put in front. t.path is escaped, so it contains no backslash.
func sameOrigin(t target, query string) string {
	path := t.prefix + t.path
	if t.path == "" {
		path += "/"
	}
	if strings.HasPrefix(path, "//") {
		path = "/." + path
	}
	if query != "" {
		path += "?" + query
	}
	return path
}

// takeBearer removes connect tokens from Authorization. Every other value is
// for the session.
func takeBearer(h http.Header) (tokens []string) {
	var kept []string
	for _, v := range h["Authorization"] {
		scheme, text, _ := strings.Cut(v, " ")
		text = strings.TrimSpace(text)
		if strings.EqualFold(scheme, "Bearer") && strings.HasPrefix(text, token.Version+".") {
			tokens = append(tokens, text)
			continue
		}
		kept = append(kept, v)
	}
	put(h, "Authorization", kept)
	return tokens[:min(len(tokens), 1)]
}

// takeCookies removes the token cookies and leaves all others unchanged. It
// returns the values of the cookie named counts.
func takeCookies(h http.Header, counts string) (tokens []string) {
	cutCookies(h, func(name, value string) bool {
		if name == counts {
			tokens = append(tokens, strings.Trim(value, `"`))
		}
		return name == tokenCookie || name == hostCookie
	})
	return tokens[:min(len(tokens), maxTokenCookies)]
}

// dropLogin removes the login cookie of the dashboard. Browsers send it here
// too if the dashboard is on another port of the same host. The names are those
// of api.LoginCookie.
func dropLogin(h http.Header) {
	cutCookies(h, func(name, _ string) bool { return name == loginCookie || name == "__Host-"+loginCookie })
}

const loginCookie = "holdfast_login"

// cutCookies removes the cookies for which cut returns true and leaves the
// others unchanged.
func cutCookies(h http.Header, cut func(name, value string) bool) {
	var lines []string
	for _, line := range h["Cookie"] {
		var kept []string
		for c := range strings.SplitSeq(line, ";") {
			name, value, _ := strings.Cut(c, "=")
			if !cut(strings.TrimSpace(name), strings.TrimSpace(value)) {
				kept = append(kept, c)
			}
		}
		if line = strings.TrimSpace(strings.Join(kept, ";")); line != "" {
			lines = append(lines, line)
		}
	}
	put(h, "Cookie", lines)
}

func put(h http.Header, name string, values []string) {
	if len(values) == 0 {
		delete(h, name)
		return
	}
	h[name] = values
}

// takeField removes the token field from a query and leaves the rest as it was
// sent.
func takeField(query string) (text, rest string, found bool) {
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err == nil && plain == tokenField {
			if !found {
				text, _ = url.QueryUnescape(value) // "" is not a token either
			}
			found = true
			continue
		}
		kept = append(kept, pair)
	}
	if !found {
		return "", query, false
	}
	return text, strings.Join(kept, "&"), true
}

// takeReferer removes a Referer that contains a token, for example that of a
// page that the gateway refused.
func takeReferer(h http.Header) {
	if strings.Contains(strings.Join(h["Referer"], " "), tokenField) {
		h.Del("Referer")
	}
}

// openTokens reads the secrets, if a file is configured.
func (g *Gateway) openTokens() error {
	if g.cfg.TokensFile == "" {
		return nil
	}
	v, err := token.OpenVerifier(g.cfg.TokensFile, g.log)
	if err != nil {
		return fmt.Errorf("gateway.tokens_file: %w", err)
	}
	g.tokens = v
	return nil
}
