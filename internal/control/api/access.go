package api

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"holdfast"
)

// access is what a caller has to be for a route, and what one is.
type access int

const (
	forAnyone access = iota // probes: nothing to learn, nothing to break
	forReader               // may look
	forAdmin                // may change things, and see what sessions say
)

// caller is who sent a request.
type caller struct {
	who string // in the audit log
	may access
}

// guard decides who may call.
type guard struct {
	admin  bool                                // the listener itself vouches for its callers
	peer   func(*http.Request) holdfast.NodeID // the callers are nodes
	tokens *Tokens                             // nil: none are asked for
	logins *Logins                             // nil: none
	hosts  []string
}

func newGuard(o Options) guard {
	return guard{admin: o.Admin, peer: o.Peer, tokens: o.Tokens, logins: o.Logins, hosts: o.Hosts}
}

// check says who sends the request, and nil if it may use a route of the given
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
		return c, &Error{Code: CodeReadOnly, Message: "the " + c.who + " is for reading only",
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
			return caller{who: stranger}, &Error{Code: CodeUnauthorized, Message: "this address is for the nodes of the fleet"}
		}
		return caller{who: "node " + string(node), may: forAdmin}, nil
	case g.admin:
		return caller{who: "unix socket", may: forAdmin}, nil
	case g.tokens != nil:
		if g.logins != nil && r.Header.Get("Authorization") == "" {
			if c, err := g.logins.caller(r); err == nil {
				return c, fromPage(r)
			}
		}
		return g.tokens.caller(r)
	case !g.knowsHost(r.Host):
		// Without a token a web page could reach us under a name of its
		// own that resolves to 127.0.0.1 (DNS rebinding).
		return caller{who: stranger}, &Error{Code: CodeBadHost, Message: "the Host header does not name this machine",
			Advice: "use 127.0.0.1 or localhost in the address"}
	}
	return caller{who: stranger, may: forReader}, nil
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
