package api

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"holdfast"
)

// access is the right that a route needs, and the right that a caller has.
type access int

const (
	forAnyone access = iota // probes: they reveal and change nothing
	forReader               // may read
	forAdmin                // may make changes, and read the output of sessions
)

// caller is the sender of a request.
type caller struct {
	name string // for the audit log
	may  access
}

// guard decides which callers may use a route.
type guard struct {
	admin  bool                                // the listener itself authenticates its callers
	peer   func(*http.Request) holdfast.NodeID // the callers are nodes
	tokens *Tokens                             // nil: no token is needed
	logins *Logins                             // nil: no logins
	hosts  []string
}

func newGuard(o Options) guard {
	return guard{admin: o.Admin, peer: o.Peer, tokens: o.Tokens, logins: o.Logins, hosts: o.Hosts}
}

// check returns the sender of the request, and nil if it may use a route of the given
// access.
func (g guard) check(r *http.Request, need access) (caller, error) {
	c, err := g.caller(r)
	switch {
	case need == forAnyone:
		return c, nil
	case err != nil:
		return c, err
	case need <= c.may:
		return c, nil
	case g.tokens != nil:
		return c, &Error{Code: CodeReadOnly, Message: "the " + c.name + " is for reading only",
			Advice: "this needs a token of api.token_file"}
	}
	return c, &Error{Code: CodeReadOnly, Message: "this address is read-only",
		Advice: "use the unix socket, or configure a token for the API"}
}

func (g guard) caller(r *http.Request) (caller, error) {
	switch {
	case g.peer != nil:
		node := g.peer(r)
		if node == "" {
			return caller{name: stranger}, &Error{Code: CodeUnauthorized, Message: "this address is for the nodes of the fleet"}
		}
		return caller{name: "node " + string(node), may: forAdmin}, nil
	case g.admin:
		return caller{name: "unix socket", may: forAdmin}, nil
	case g.tokens != nil:
		if g.logins != nil && r.Header.Get("Authorization") == "" {
			if c, err := g.logins.caller(r); err == nil {
				return c, fromPage(r)
			}
		}
		return g.tokens.caller(r)
	case !g.knowsHost(r.Host):
		// Without a token a web page could reach this server under a name of its own
		// that resolves to 127.0.0.1 (DNS rebinding).
		return caller{name: stranger}, &Error{Code: CodeBadHost, Message: "the Host header does not name this machine",
			Advice: "use 127.0.0.1 or localhost in the address"}
	}
	return caller{name: stranger, may: forReader}, nil
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
