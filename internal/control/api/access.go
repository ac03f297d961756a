package api

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
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

// check returns the sender of the request, and nil if it may use a route of the given
// access.
func (o Options) check(r *http.Request, need access) (caller, error) {
	c, err := o.caller(r)
	switch {
	case need == forAnyone:
		return c, nil
	case err != nil:
		return c, err
	case need <= c.may:
		return c, nil
	case o.Tokens != nil:
		return c, &Error{Code: CodeReadOnly, Message: "the " + c.name + " is for reading only",
			Advice: "this needs a token of api.token_file"}
	}
	return c, &Error{Code: CodeReadOnly, Message: "this address is read-only",
		Advice: "use the unix socket, or configure a token for the API"}
}

func (o Options) caller(r *http.Request) (caller, error) {
	switch {
	case o.Peer != nil:
		node := o.Peer(r)
		if node == "" {
			return caller{name: unknownCaller}, &Error{Code: CodeUnauthorized, Message: "this address is for the nodes of the fleet"}
		}
		return caller{name: "node " + string(node), may: forAdmin}, nil
	case o.Admin:
		return caller{name: "unix socket", may: forAdmin}, nil
	case o.Tokens != nil:
		if o.Logins != nil && r.Header.Get("Authorization") == "" {
			if c, err := o.Logins.caller(r); err == nil {
				return c, fromPage(r)
			}
		}
		return o.Tokens.caller(r)
	case !o.knowsHost(r.Host):
		// Without a token a web page could reach this server under a name of its own
		// that resolves to 127.0.0.1 (DNS rebinding).
		return caller{name: unknownCaller}, &Error{Code: CodeBadHost, Message: "the Host header does not name this machine",
			Advice: "use 127.0.0.1 or localhost in the address"}
	}
	return caller{name: unknownCaller, may: forReader}, nil
}

func (o Options) knowsHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return true
	}
	return strings.EqualFold(host, "localhost") ||
		slices.ContainsFunc(o.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}
