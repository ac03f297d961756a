package gateway

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"holdfast"
)

// portPrefix is the prefix of a port in path routing: /s/<key>/p/<port>/.
const portPrefix = "/p/"

// portError reports a port that clients may not reach.
type portError struct {
	port int
	of   holdfast.SessionKey // "" if no template allows the port
}

func (e *portError) Error() string {
	if e.of == "" {
		return fmt.Sprintf("no template allows port %d", e.port)
	}
	return fmt.Sprintf("the template of session %s does not allow port %d", e.of, e.port)
}

// parsePort reads a port in its only spelling. 0 stands for the template's own port.
func parsePort(text string) (port int, ok bool) {
	port, err := strconv.Atoi(text)
	return port, err == nil && port >= 0 && port <= 65535 && strconv.Itoa(port) == text
}

// cutPort splits the label <port>-<key> of a host name. A label of another form is a key,
// and so is one that is too long for a label (RFC 1035, 2.3.4). If no template lists
// ports, every label is a key.
func (c Config) cutPort(label string) (port int, key string) {
	text, rest, _ := strings.Cut(label, "-")
	port, ok := parsePort(text)
	if _, err := holdfast.ParseSessionKey(rest); c.Ports.None() || !ok || err != nil || len(label) > holdfast.MaxKeyLen {
		return 0, label
	}
	return port, rest
}

// HostLabel returns the first label of the host name that leads to the server of a
// session: its key, or 0-<key> if the key would be read as a port and another key. A
// label has at most 63 characters (RFC 1035, 2.3.4), so "" stands for a longer one: the
// session has no host name.
func (c Config) HostLabel(key holdfast.SessionKey) string {
	if _, name := c.cutPort(string(key)); name == string(key) {
		return name
	}
	if len(key) > holdfast.MaxKeyLen-len("0-") {
		return ""
	}
	return "0-" + string(key)
}

// portInPath moves the port of the path into the target. A path that names no port is
// the session's own.
func (c Config) portInPath(t target) (target, error) {
	rest, ok := strings.CutPrefix(t.path, portPrefix)
	if !ok || c.Ports.None() {
		return t, nil
	}
	text, _, slash := strings.Cut(rest, "/")
	port, ok := parsePort(text)
	if !ok {
		return t, nil
	}
	t.port, t.prefix = port, t.prefix+portPrefix+text
	if !slash {
		t.path = ""
		return t, errSlash
	}
	t.path = rest[len(text):]
	return t, nil
}

// name names the session, and the port if the request does.
func (t target) name() string {
	if t.port == 0 {
		return string(t.key)
	}
	return fmt.Sprintf("%s, port %d", t.key, t.port)
}

// atPort returns the route to the target's port of the container, if the session is on
// this node. Another node checks the port itself. The error is a *portError.
func (t target) atPort(r holdfast.Route) (holdfast.Route, error) {
	if t.port == 0 || r.Node != "" {
		return r, nil
	}
	host, own, err := net.SplitHostPort(r.Address)
	if err != nil {
		return r, fmt.Errorf("the address of session %s: %w", r.Key, err)
	}
	port := strconv.Itoa(t.port)
	if port != own && !r.Ports.Allows(t.port) {
		return r, &portError{port: t.port, of: r.Key}
	}
	r.Address = net.JoinHostPort(host, port)
	return r, nil
}

// vouched reports whether err is the refusal of a port by a session that its node has:
// the directory of sessions is right, and is not to be asked again. A closed port is
// common, unlike a session that is ready and refuses its own port.
func (t *request) vouched(err error) bool {
	refused, ok := errors.AsType[*refusedError](err)
	return ok && refused.byServer && t.port != 0 && t.route.Node != ""
}

// forwardedTarget returns the session and port in the form of sessionHeader. A node of an
// earlier version refuses a port as a malformed key, so it never serves the wrong one.
func forwardedTarget(key holdfast.SessionKey, port int) string {
	if port == 0 {
		return string(key)
	}
	return fmt.Sprintf("%s:%d", key, port)
}

// parseForwardedTarget reads what forwardedTarget returned.
func parseForwardedTarget(text string) (t target, err error) {
	name, port, named := strings.Cut(text, ":")
	if t.key, err = holdfast.ParseSessionKey(name); err != nil {
		return target{}, err
	}
	if named {
		var ok bool
		if t.port, ok = parsePort(port); !ok || t.port == 0 {
			return target{}, fmt.Errorf("%.8q is not a port", port)
		}
	}
	return t, nil
}
