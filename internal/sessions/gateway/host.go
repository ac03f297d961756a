package gateway

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
)

// errHost answers a request for a host name that the gateway does not serve.
// Any web page can make its own name resolve to a loopback address (DNS
// rebinding) and would then share the origin of the sessions. It cannot choose
// the Host header that its name produces.
var errHost = errors.New("this host name is not served here")

// knownHost reports whether a request's Host header is an address, a loopback
// name, the sessions' domain, or a configured name.
func (c Config) knownHost(host string) bool {
	name := hostName(host)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") { // RFC 6761, 6.3
		return true
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	if c.Domain != "" && (name == c.Domain || strings.HasSuffix(name, "."+c.Domain)) {
		return true
	}
	return slices.ContainsFunc(c.Hosts, func(h string) bool { return h == "*" || strings.EqualFold(h, name) })
}
