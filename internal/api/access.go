package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// access is what a caller has to be for a route.
type access int

const (
	anyone access = iota // probes: nothing to learn, nothing to break
	reader               // may look
	admin                // may change things, and see what sessions say
)

// guard decides who may call.
type guard struct {
	admin bool              // the listener itself vouches for its callers
	token [sha256.Size]byte // of the configured token
	ask   bool              // a token is configured
	hosts []string
}

func newGuard(o Options) guard {
	return guard{admin: o.Admin, ask: o.Token != "", token: sha256.Sum256([]byte(o.Token)), hosts: o.Hosts}
}

// check returns nil if the request may use a route of the given access.
func (g guard) check(r *http.Request, need access) error {
	switch {
	case g.admin || need == anyone:
		return nil
	case g.ask:
		return g.checkToken(r)
	case !g.knowsHost(r.Host):
		// Without a token a web page could reach us under a name of its
		// own that resolves to 127.0.0.1 (DNS rebinding).
		return &Error{Code: CodeBadHost, Message: "the Host header does not name this machine",
			Advice: "use 127.0.0.1 or localhost in the address"}
	case need == admin:
		return &Error{Code: CodeReadOnly, Message: "this address is read-only",
			Advice: "use the unix socket, or configure a token for the API"}
	}
	return nil
}

// checkToken compares hashes, so that neither length nor content of the token
// shows in the time it takes.
func (g guard) checkToken(r *http.Request) error {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(given))
	same := subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1
	if same && strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	return &Error{Code: CodeUnauthorized, Message: "the bearer token is missing or wrong",
		Advice: "send the header Authorization: Bearer TOKEN with the token of the agent's configuration"}
}

func (g guard) knowsHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return true
	}
	return strings.EqualFold(host, "localhost") ||
		slices.ContainsFunc(g.hosts, func(h string) bool { return strings.EqualFold(h, host) })
}
