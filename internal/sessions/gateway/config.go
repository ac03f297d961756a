package gateway

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast"
)

// Config is the gateway's part of the configuration.
type Config struct {
	// Domain turns host routing on: <key>.<domain> is session key's. In
	// lower case, without a leading or trailing dot. "" is off.
	Domain string `yaml:"domain"`

	// CertFile and KeyFile (PEM) turn TLS and HTTP/2 on. Both or none.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`

	// Hosts are the names that requests may be sent to, beside addresses,
	// loopback names and the domain: those that a proxy in front passes on.
	// "*" is any, and lets every page on the web that has its own name point
	// here talk to sessions.
	Hosts []string `yaml:"hosts"`

	// TokensFile has the secrets of connect tokens (see package token), mode
	// 0600. With it every request needs a token for its session. "" is off.
	TokensFile string `yaml:"tokens_file"`

	// Paths serves /s/<key>/ too where Domain is set. All sessions are one
	// origin there, so that each page can do all that another's could.
	Paths bool `yaml:"paths"`

	// Origins lists which other origins' pages may change anything (every
	// method but GET, HEAD and OPTIONS) and open upgraded connections ("https://app.example.org"); "*" is any. A page of the
	// same host always may. Browsers do not hold WebSockets to the
	// same-origin policy, so that without this every page that a user opens
	// could talk to a session on the user's loopback.
	Origins []string `yaml:"origins"`

	// MaxConnections is how many connections clients may have open, upgraded
	// ones included, from 1. More wait in the kernel's queue.
	MaxConnections int `yaml:"max_connections"`

	ParkPerKey int           `yaml:"park_per_key"` // requests that may wait for one session, from 1
	ParkTotal  int           `yaml:"park_total"`   // requests that may wait in all, from 1
	ParkTime   time.Duration `yaml:"park_time"`    // longest wait of one request for its session, over 0; the time until the session answers is not in it

	MaxHeaderBytes int   `yaml:"max_header_bytes"` // of a request's header (431 beyond) and a response's, from 4096
	MaxBodyBytes   int64 `yaml:"max_body_bytes"`   // of a request's body (413 beyond); 0 is no bound

	HeaderTimeout   time.Duration `yaml:"header_timeout"`   // for a client to send its request's header
	IdleTimeout     time.Duration `yaml:"idle_timeout"`     // of a connection between requests
	ResponseTimeout time.Duration `yaml:"response_timeout"` // for a session to begin its response (504 beyond)
	StopTimeout     time.Duration `yaml:"stop_timeout"`     // for requests to finish when the gateway stops
}

// DefaultConfig is what a host gets that configures nothing.
func DefaultConfig() Config {
	return Config{
		MaxConnections: 65536,
		ParkPerKey:     64, ParkTotal: 4096, ParkTime: 30 * time.Second,
		MaxHeaderBytes: 64 << 10, MaxBodyBytes: 10 << 30,
		HeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ResponseTimeout: 5 * time.Minute, StopTimeout: 5 * time.Second,
	}
}

// Validate checks the ranges given at the fields.
func (c Config) Validate() error {
	var bad []error
	complain := func(wrong bool, format string, args ...any) {
		if wrong {
			bad = append(bad, fmt.Errorf("gateway: "+format, args...))
		}
	}
	complain((c.CertFile == "") != (c.KeyFile == ""), "cert_file and key_file go together")
	complain(c.Domain != strings.ToLower(strings.Trim(c.Domain, ".")) || strings.ContainsAny(c.Domain, "/: *"),
		"domain is %q, it has to be a plain name in lower case such as sessions.example.org", c.Domain)
	complain(c.MaxConnections < 1, "max_connections is %d, it has to be at least 1", c.MaxConnections)
	complain(c.ParkPerKey < 1, "park_per_key is %d, it has to be at least 1", c.ParkPerKey)
	complain(c.ParkTotal < 1, "park_total is %d, it has to be at least 1", c.ParkTotal)
	complain(c.MaxHeaderBytes < 4096, "max_header_bytes is %d, it has to be at least 4096", c.MaxHeaderBytes)
	complain(c.MaxBodyBytes < 0, "max_body_bytes is %d, it cannot be negative", c.MaxBodyBytes)
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"park_time", c.ParkTime}, {"header_timeout", c.HeaderTimeout}, {"idle_timeout", c.IdleTimeout},
		{"response_timeout", c.ResponseTimeout}, {"stop_timeout", c.StopTimeout},
	} {
		complain(d.d <= 0, "%s is %v, it has to be over 0", d.name, d.d)
	}
	if len(bad) == 0 {
		return nil
	}
	return holdfast.WithHint(errors.Join(bad...), "what is left out has a default that fits most hosts")
}
