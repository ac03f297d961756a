package api

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// LoginCookie is the cookie of a browser's login. Browsers send it to every port of the
// same host: the gateway removes it from requests to sessions.
const LoginCookie = "holdfast_login"

// Bounds of logins.
const (
	loginLife  = 12 * time.Hour
	maxLogins  = 1024 // at once; one more ends the oldest
	maxCookies = 4    // of this name in one request; other hosts may have set some of them
)

// Logins are the browsers that have shown a token. A browser stores a random id of its
// login and never the token. The login ends with the token, after 12 hours, at a
// logout, and with the agent. Any goroutine may use Logins. They start no goroutine.
type Logins struct {
	tokens *Tokens
	audit  *audit
	now    func() time.Time

	mu   sync.Mutex
	byID map[[sha256.Size]byte]login // by the hash of the id
}

type login struct {
	token [sha256.Size]byte // its hash
	until time.Time
}

// NewLogins returns an empty list of logins, or nil if no tokens are configured. log
// gets a line with the attribute audit=true for each login, logout and refusal.
func NewLogins(t *Tokens, log *slog.Logger) *Logins {
	if t == nil {
		return nil
	}
	return &Logins{tokens: t, audit: newAudit(log), now: time.Now, byID: map[[sha256.Size]byte]login{}}
}

// Login sets a cookie for the browser that sent r if the token is one of the agent's.
// With an error it writes nothing.
func (l *Logins) Login(w http.ResponseWriter, r *http.Request, token string) error {
	a := &act{r: r, route: "login", begin: time.Now()}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	c, err := l.tokens.bearer(sum)
	a.caller = c
	defer func() { l.audit.write(a, false, err) }()
	if err != nil {
		return err
	}
	id := rand.Text()
	l.add(sha256.Sum256([]byte(id)), login{sum, l.now().Add(loginLife)})
	http.SetCookie(w, loginCookie(r, id, int(loginLife.Seconds())))
	return nil
}

// loginCookie returns a cookie that no script can read and that no other site's page
// makes a browser send. With TLS its name prevents other hosts of the domain from
// setting it (RFC 6265bis, 4.1.3.2).
func loginCookie(r *http.Request, id string, age int) *http.Cookie {
	c := &http.Cookie{Name: LoginCookie, Value: id, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if r.TLS != nil {
		c.Name, c.Secure = "__Host-"+LoginCookie, true
	}
	return c
}

// add adds a login. It removes ended logins and, at the limit, the oldest.
func (l *Logins) add(id [sha256.Size]byte, n login) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var oldest [sha256.Size]byte
	for k, v := range l.byID {
		if !l.now().Before(v.until) {
			delete(l.byID, k)
		} else if o, ok := l.byID[oldest]; !ok || v.until.Before(o.until) {
			oldest = k
		}
	}
	if len(l.byID) >= maxLogins {
		delete(l.byID, oldest)
	}
	l.byID[id] = n
}

// Logout ends the login of the browser that sent r.
func (l *Logins) Logout(w http.ResponseWriter, r *http.Request) {
	a := &act{r: r, route: "logout", begin: time.Now()}
	var err error
	a.caller, err = l.caller(r)
	l.audit.write(a, false, err)
	l.mu.Lock()
	for _, id := range loginIDs(r) {
		delete(l.byID, id)
	}
	l.mu.Unlock()
	http.SetCookie(w, loginCookie(r, "", -1))
}

// loginIDs returns the hashes of the ids in the request's cookies.
func loginIDs(r *http.Request) (ids [][sha256.Size]byte) {
	cookies := r.CookiesNamed(loginCookie(r, "", 0).Name)
	for _, c := range cookies[:min(maxCookies, len(cookies))] {
		ids = append(ids, sha256.Sum256([]byte(c.Value)))
	}
	return ids
}

// errNoLogin is for a request without a valid login.
var errNoLogin = errors.New("no login")

// caller returns the owner of the request's login.
func (l *Logins) caller(r *http.Request) (Caller, error) {
	for _, id := range loginIDs(r) {
		l.mu.Lock()
		n, ok := l.byID[id]
		l.mu.Unlock()
		if !ok || !l.now().Before(n.until) {
			continue
		}
		if c, err := l.tokens.bearer(n.token); err == nil {
			return c, nil
		}
	}
	return Caller{Name: unknownCaller}, errNoLogin
}

// CallerOf returns the sender of a request to a listener with the given options, for
// handlers beside New's. The error is an *Error: CodeUnauthorized if a token is
// missing, CodeBadHost.
func CallerOf(o Options, r *http.Request) (Caller, error) {
	return o.check(r, forReader)
}

// fromPage refuses a request that makes a change with a login's cookie and does not
// name the page that sent it: every browser names it in such a request.
func fromPage(r *http.Request) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return nil
	}
	if r.Header.Get("Origin") == "" && r.Header.Get("Sec-Fetch-Site") == "" {
		return &Error{Code: CodeCrossOrigin, Message: "the request does not say which page it comes from"}
	}
	return nil
}
