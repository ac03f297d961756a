package gateway

import (
	"net/http"
	"strings"
	"time"
)

const (
	reservedPrefix  = "X-Holdfast-"  // what gateways say to each other
	forwardedPrefix = "X-Forwarded-" // what they say of the client
)

// begins reports whether a header's name begins with prefix. Many servers take
// an underscore for a hyphen (RFC 3875, 4.1.18), so that here it is one, too.
func begins(name, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(strings.ReplaceAll(name[:len(prefix)], "_", "-"), prefix)
}

// dropReserved takes out of h what only gateways may say.
func dropReserved(h http.Header) {
	for name := range h {
		if begins(name, reservedPrefix) {
			delete(h, name)
		}
	}
}

// dropOurs takes out of a client's h what the gateway alone says of it, in every
// spelling. Forwarded (RFC 7239) the reverse proxy has dropped.
func dropOurs(h http.Header) {
	dropReserved(h)
	dropLogin(h)
	for name := range h {
		if begins(name, forwardedPrefix) || begins(name, "X-Real-Ip") && len(name) == len("X-Real-Ip") {
			delete(h, name)
		}
	}
}

// answer is the writer of a response that comes through a proxy.
type answer struct {
	http.ResponseWriter
	gateway *Gateway
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader keeps back what is not the client's: 100 Continue, which net/http
// sends by itself to those who wait for it, when their body is first read, and
// in interim responses, which the proxy copies, what only gateways may say.
func (a *answer) WriteHeader(status int) {
	if status == http.StatusContinue {
		return
	}
	if status < 200 {
		dropReserved(a.Header())
	} else {
		a.gateway.LastAnswer(a)
	}
	a.ResponseWriter.WriteHeader(status)
}

// unreadTime is how long a client may take over a body that nobody wants.
const unreadTime = 5 * time.Second

// unread bounds what a request's body may still cost that is answered by the
// gateway itself, and ends an HTTP/1 connection with the answer. net/http would
// take what comes of the body after the deadline for the next request.
func unread(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadTime)) // every server of ours can
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}
