package gateway

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast"
)

// Config is the configuration section of the gateway.
type Config struct {
	// Domain enables host routing: requests for <key>.<domain> go to session key.
	// It is in lower case, without a leading or trailing dot. "" disables host
	// routing.
	Domain string `yaml:"domain"`

	// Ports are the ports that any template allows, the templates' own ports included.
	// It is empty if no template lists ports; then no host name or path names a port.
	Ports holdfast.Ports `yaml:"-"`

	// CertFile and KeyFile (PEM) enable TLS and HTTP/2. Set both or neither.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`

	// Hosts lists the accepted Host headers, in addition to addresses, loopback
	// names and the domain; for example the names that a proxy in front passes
	// on. "*" accepts every name. Then any web page that points its own name at
	// this address can talk to sessions (DNS rebinding).
	Hosts []string `yaml:"hosts"`

	// TokensFile holds the secrets of connect tokens (see package token), mode
	// 0600. When set, every request needs a token for its session. "" disables
	// tokens.
	TokensFile string `yaml:"tokens_file"`

	// Paths serves /s/<key>/ also when Domain is set. All sessions share one
	// origin there, so a page of one session can act on every other.
	Paths bool `yaml:"paths"`

	// Origins lists the other origins ("https://app.example.org") that may send
	// requests with any method except GET, HEAD and OPTIONS, open upgraded
	// connections, and boot sessions by other means than a link. "*" allows every origin. A page of the same host is always
	// allowed. Browsers do not apply the same-origin policy to WebSockets.
	// Without this check, every page that a user opens could talk to a session on
	// the user's loopback address.
	Origins []string `yaml:"origins"`

	// MaxConnections limits the open client connections, including upgraded ones;
	// at least 1. Further connections wait in the kernel's accept queue.
	MaxConnections int `yaml:"max_connections"`

	// MaxRequests limits the requests in progress, and MaxRequestsPerClient those of
	// one client, at least 1. Each stream of an HTTP/2 connection counts, and an
	// upgraded connection until it is closed. Above the limits the gateway answers 503
	// and 429. For MaxRequests 0 means MaxConnections.
	MaxRequests          int `yaml:"max_requests"`
	MaxRequestsPerClient int `yaml:"max_requests_per_client"`

	// BootsPerClient limits how many sessions the requests of one client may boot in a
	// minute, and at once; 0 means no limit. A client is an IPv4 address, or the /64 of
	// an IPv6 address. All clients behind one proxy are one client.
	BootsPerClient int `yaml:"boots_per_client"`

	ParkPerKey int           `yaml:"park_per_key"` // requests that may wait for one session, at least 1
	ParkTotal  int           `yaml:"park_total"`   // requests that may wait in total, at least 1
	ParkTime   time.Duration `yaml:"park_time"`    // longest wait of one request for its session, over 0; excludes the time that the session takes to answer

	MaxHeaderBytes int   `yaml:"max_header_bytes"` // of a request's header (431 above) and of a response's, at least 4096
	MaxBodyBytes   int64 `yaml:"max_body_bytes"`   // of a request's body (413 above); 0 means no limit

	HeaderTimeout   time.Duration `yaml:"header_timeout"`   // for a client to send the header of its request
	BodyTimeout     time.Duration `yaml:"body_timeout"`     // for a client to send the next minBody bytes of a body (408 after), until the response begins
	WriteTimeout    time.Duration `yaml:"write_timeout"`    // for a client to accept the next part of a response, up to 32 KiB; see streamFactor
	IdleTimeout     time.Duration `yaml:"idle_timeout"`     // of a connection between requests
	ResponseTimeout time.Duration `yaml:"response_timeout"` // for a session to begin its response (504 after)
	StopTimeout     time.Duration `yaml:"stop_timeout"`     // for requests to finish when the gateway stops
}

// DefaultConfig returns the configuration of a host that sets nothing.
func DefaultConfig() Config {
	return Config{
		MaxConnections: 65536, MaxRequestsPerClient: 16384, BootsPerClient: 600,
		ParkPerKey: 64, ParkTotal: 4096, ParkTime: 30 * time.Second,
		MaxHeaderBytes: 64 << 10, MaxBodyBytes: 10 << 30,
		HeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BodyTimeout: time.Minute, WriteTimeout: 5 * time.Minute,
		ResponseTimeout: 5 * time.Minute, StopTimeout: 5 * time.Second,
	}
}

// Validate checks the ranges that the fields document.
func (c Config) Validate() error {
	var bad []error
	complain := func(wrong bool, format string, args ...any) {
		if wrong {
			bad = append(bad, fmt.Errorf("gateway: "+format, args...))
		}
	}
	complain((c.CertFile == "") != (c.KeyFile == ""), "cert_file and key_file go together")
	complain(c.Domain != strings.ToLower(strings.Trim(c.Domain, ".")) || strings.ContainsAny(c.Domain, "/: *"),
		"domain is %q, it must be a plain name in lower case such as sessions.example.org", c.Domain)
	complain(c.MaxConnections < 1, "max_connections is %d, it has to be at least 1", c.MaxConnections)
	complain(c.MaxRequests < 0, "max_requests is %d, it cannot be negative", c.MaxRequests)
	complain(c.MaxRequestsPerClient < 1, "max_requests_per_client is %d, it has to be at least 1", c.MaxRequestsPerClient)
	complain(c.BootsPerClient < 0, "boots_per_client is %d, it cannot be negative", c.BootsPerClient)
	complain(c.ParkPerKey < 1, "park_per_key is %d, it has to be at least 1", c.ParkPerKey)
	complain(c.ParkTotal < 1, "park_total is %d, it has to be at least 1", c.ParkTotal)
	complain(c.MaxHeaderBytes < 4096, "max_header_bytes is %d, it has to be at least 4096", c.MaxHeaderBytes)
	complain(c.MaxBodyBytes < 0, "max_body_bytes is %d, it cannot be negative", c.MaxBodyBytes)
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"park_time", c.ParkTime}, {"header_timeout", c.HeaderTimeout}, {"idle_timeout", c.IdleTimeout},
		{"body_timeout", c.BodyTimeout}, {"write_timeout", c.WriteTimeout},
		{"response_timeout", c.ResponseTimeout}, {"stop_timeout", c.StopTimeout},
	} {
		complain(d.d <= 0, "%s is %v, it has to be over 0", d.name, d.d)
	}
	if len(bad) == 0 {
		return nil
	}
	return holdfast.WithHint(errors.Join(bad...), "what is left out has a default that fits most hosts")
}
