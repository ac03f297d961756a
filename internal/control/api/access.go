package api

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// access is the right that a route needs.
type access int

const (
	forAnyone access = iota // probes: they reveal and change nothing
	forReader               // may read
	forAdmin                // may make changes, and read the output of sessions
)

// Caller is the sender of a request. Every caller that check does not refuse may read.
type Caller struct {
	Name  string // for the audit log
	Admin bool   // may make changes
}

// check returns the sender of the request, and nil if it may use a route of the given
// access.
func (o Options) check(r *http.Request, need access) (Caller, error) {
	c, err := o.caller(r)
	switch {
	case need == forAnyone:
		return c, nil
	case err != nil:
		return c, err
	case need == forReader || c.Admin:
		return c, nil
	case o.Tokens != nil:
		return c, &Error{Code: CodeReadOnly, Message: "the " + c.Name + " is for reading only",
			Advice: "this needs a token of api.token_file"}
	}
	return c, &Error{Code: CodeReadOnly, Message: "this address is read-only",
		Advice: "use the unix socket, or configure a token for the API"}
}

func (o Options) caller(r *http.Request) (Caller, error) {
	switch {
	case o.Peer != nil:
		node := o.Peer(r)
		if node == "" {
			return Caller{Name: unknownCaller}, &Error{Code: CodeUnauthorized, Message: "this address is for the nodes of the fleet"}
		}
		return Caller{Name: "node " + string(node), Admin: true}, nil
	case o.Admin:
		return Caller{Name: "unix socket", Admin: true}, nil
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
		return Caller{Name: unknownCaller}, &Error{Code: CodeBadHost, Message: "the Host header does not name this machine",
			Advice: "use 127.0.0.1 or localhost in the address"}
	}
	return Caller{Name: unknownCaller}, nil
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
