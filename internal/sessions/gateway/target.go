package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"

	"holdfast"
)

// pathPrefix is where path routing starts: /s/<key>/.
const pathPrefix = "/s/"

var (
	errNoRoute = errors.New("nothing is served here")
	errSlash   = errors.New("the session's root is missing its slash") // answered by a redirect
)

// target is which session a request means, and what of its path is the
// session's business.
type target struct {
	key    holdfast.SessionKey
	prefix string // /s/<key>, "" with host routing
	path   string // escaped, starts with a slash
}

// parseTarget finds the session in the host, where a domain is configured, or
// else in the path. path is the escaped path as the client sent it: nothing is
// decoded or cleaned before the key is cut off, so that no spelling of one
// session's path can reach another. Errors: *holdfast.KeyError, errNoRoute,
// errSlash.
func parseTarget(domain, host, path string) (target, error) {
	if domain != "" {
		if label, ok := strings.CutSuffix(hostName(host), "."+domain); ok {
			key, err := holdfast.ParseSessionKey(label)
			if err == nil && !strings.HasPrefix(path, "/") {
				err = errNoRoute // OPTIONS *
			}
			return target{key: key, path: path}, err
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
	return t, nil
}

// hostName is the host of a Host header in lower case, without port and without
// the dot of a fully qualified name.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// rewriteURL sets u's path to the session's part of it, in the client's own
// spelling.
func rewriteURL(u *url.URL, t target) error {
	path, err := url.PathUnescape(t.path)
	if err != nil {
		return err // net/http has parsed it before, so this cannot be
	}
	u.Path, u.RawPath = path, t.path
	return nil
}

// allowedOrigin reports whether the page that asks may have what it asks for: it
// is listed, or of the same origin. Without an Origin header it is not a browser
// (RFC 6455, 10.2). Over TLS the page has to have come by it, too: one that did
// not may be anybody's. Without TLS its scheme says nothing, because a proxy in
// front may have taken the TLS off.
func allowedOrigin(allowed []string, r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	for _, a := range allowed {
		if a == "*" || strings.EqualFold(a, origins[0]) {
			return true
		}
	}
	u, err := url.Parse(origins[0])
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) && (r.TLS == nil || u.Scheme == "https")
}
