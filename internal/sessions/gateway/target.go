package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"holdfast"
)

// pathPrefix is the prefix of path routing: /s/<key>/.
const pathPrefix = "/s/"

var (
	errNoRoute = errors.New("nothing is served here")
	errSlash   = errors.New("the session's root is missing its slash") // answered by a redirect
)

// target is the session that a request names, and the part of its path that the
// session sees.
type target struct {
	key    holdfast.SessionKey
	port   int    // of the container; 0 is the template's own port
	prefix string // /s/<key> or /s/<key>/p/<port>, "" with host routing
	path   string // escaped, starts with a slash
}

// clientTarget is parseTarget for a client, which may name a session by its path only where
// paths are served.
func (c Config) clientTarget(host, path string) (target, error) {
	t, err := c.parseTarget(host, path)
	if t.prefix != "" && c.Domain != "" && !c.Paths {
		return target{}, errNoRoute
	}
	return t, err
}

// parseTarget finds the session in the host, if a domain is configured, else in
// the path. path is the escaped path as the client sent it. Nothing is decoded
// or cleaned before the key is split off, so no spelling of one session's path
// can reach another session. Errors: *holdfast.KeyError, *portError, errNoRoute,
// errSlash.
func (c Config) parseTarget(host, path string) (target, error) {
	t, err := c.splitTarget(host, path)
	if err == nil || errors.Is(err, errSlash) {
		if t.port != 0 && !c.Ports.Allows(t.port) {
			return t, &portError{port: t.port} // boots nothing
		}
	}
	return t, err
}

func (c Config) splitTarget(host, path string) (target, error) {
	if c.Domain != "" {
		if label, ok := strings.CutSuffix(hostName(host), "."+c.Domain); ok {
			port, name := c.cutPort(label)
			key, err := holdfast.ParseSessionKey(name)
			if err == nil && !strings.HasPrefix(path, "/") {
				err = errNoRoute // OPTIONS *
			}
			return target{key: key, port: port, path: path}, err
		}
	}
	rest, ok := strings.CutPrefix(path, pathPrefix)
	if !ok {
		return target{}, errNoRoute
	}
	name, _, slash := strings.Cut(rest, "/")
	key, err := holdfast.ParseSessionKey(name)
	if err != nil {
		return target{}, err
	}
	t := target{key: key, prefix: pathPrefix + name}
	if !slash {
		return t, errSlash
	}
	t.path = rest[len(name):]
	return c.portInPath(t)
}

// hostName returns the host of a Host header in lower case, without the port
// and without the trailing dot of a fully qualified name.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// allowedOrigin reports whether the page that sent r may send it: its origin is
// listed, or is the same as that of r. A request without an Origin header does
// not come from a browser (RFC 6455, 10.2). Over TLS the scheme of the page
// must be https, since any host on the network path can forge a page without
// TLS. Without TLS the scheme is not checked, because a proxy in front may have
// terminated TLS.
func allowedOrigin(allowed []string, r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	if slices.ContainsFunc(allowed, func(a string) bool { return a == "*" || strings.EqualFold(a, origins[0]) }) {
		return true
	}
	u, err := url.Parse(origins[0])
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) && (r.TLS == nil || u.Scheme == "https")
}

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
