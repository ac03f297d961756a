package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	reservedPrefix  = "X-Holdfast-"  // headers between gateways
	forwardedPrefix = "X-Forwarded-" // headers that describe the client
)

// begins reports whether the name of a header begins with prefix. Many servers
// treat an underscore as a hyphen (RFC 3875, 4.1.18), and so does begins.
func begins(name, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(strings.ReplaceAll(name[:len(prefix)], "_", "-"), prefix)
}

// dropReserved removes the headers that only gateways may send.
func dropReserved(h http.Header) {
	for name := range h {
		if begins(name, reservedPrefix) {
			delete(h, name)
		}
	}
}

// dropGatewayHeaders removes from a client's headers, in every spelling, those that only
// the gateway sets. The reverse proxy has already removed Forwarded (RFC 7239).
func dropGatewayHeaders(h http.Header) {
	dropLogin(h)
	for name := range h {
		if fromGateway(name) {
			delete(h, name)
		}
	}
}

// fromGateway reports whether only gateways may send a header.
func fromGateway(name string) bool {
	return begins(name, reservedPrefix) || begins(name, forwardedPrefix) || begins(name, "X-Real-Ip") && len(name) == len("X-Real-Ip")
}

// gatewayTrailers are fields that no trailer may have, beside those of
// httpguts.ValidTrailerHeader: they describe the client, belong to one connection, or
// carry credentials (RFC 9110, 6.5.1).
var gatewayTrailers = []string{"Cookie", "Forwarded", "Http2-Settings", "Location", "Set-Cookie", "Upgrade", "X-Real-Ip"}

// dropTrailers removes the fields that no trailer may have, in every spelling.
func dropTrailers(h http.Header) {
	for name := range h {
		plain := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		if !httpguts.ValidTrailerHeader(plain) || begins(name, reservedPrefix) || begins(name, forwardedPrefix) || slices.Contains(gatewayTrailers, plain) {
			delete(h, name)
		}
	}
}

// trailed is a body with trailers. net/http fills them in when it returns the body's
// end, whether the header announced them or not.
type trailed struct {
	io.ReadCloser
	trailer *http.Header
}

func (b trailed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		dropTrailers(*b.trailer)
	}
	return n, err
}

// unreadTime limits how long a client may send a body that the gateway
// discards.
const unreadTime = 5 * time.Second

// unread limits the cost of a request's body when the gateway answers the
// request itself. An HTTP/1 connection ends with the answer: otherwise net/http
// would read the rest of the body after the deadline as the next request.
func unread(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadTime)) // supported by every server of the gateway
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}
