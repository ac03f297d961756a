// Package ready asks a server, in the server's own protocol, whether it serves clients. A
// server may listen long before that: PostgreSQL while it recovers, Redis while it loads its
// data, a Java server while it starts.
package ready

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Kind names a way to ask.
type Kind string

// The kinds. Auto asks a server of a known protocol, and no other. TCP asks nothing: a
// server that listens is ready.
const (
	Auto     Kind = "auto"
	TCP      Kind = "tcp"
	Postgres Kind = "postgres"
	MySQL    Kind = "mysql"
	Redis    Kind = "redis"
	HTTP     Kind = "http"
	Exec     Kind = "exec"
)

// Words returns the kinds that are a text for Parse by themselves.
func Words() []Kind { return []Kind{Auto, TCP, Postgres, MySQL, Redis} }

// execPrefix begins the text of a check of kind Exec.
const execPrefix = "exec:"

// Check says how to ask. The zero Check is one of kind TCP.
type Check struct {
	Kind Kind `json:"kind"`
	// URL is for HTTP: what to request. Scheme, port and path are used; the host goes into
	// the request's Host header, and with https into the TLS handshake. The certificate is
	// verified only if the connection leaves this host.
	URL string `json:"url,omitempty"`
	// Argv is for Exec: a program and its arguments. The words {host} and {port} in
	// them mean an address at which the program reaches the server.
	Argv []string `json:"argv,omitempty"`
}

// Asks reports whether c asks a server at all.
func (c Check) Asks() bool { return c.Kind != "" && c.Kind != TCP && c.Kind != Auto }

// String returns the text that Parse parses.
func (c Check) String() string {
	switch c.Kind {
	case "":
		return string(TCP)
	case HTTP:
		return c.URL
	case Exec:
		return execPrefix + strings.Join(c.Argv, " ")
	}
	return string(c.Kind)
}

// Parse parses "auto", "tcp", "postgres", "mysql", "redis", an URL that begins with
// http:// or https://, or "exec:PROGRAM ARG…". The words of a program are separated by spaces; there is
// no shell, and quotes have no meaning.
func Parse(s string) (Check, error) {
	switch k := Kind(s); {
	case slices.Contains(Words(), k):
		return Check{Kind: k}, nil
	case strings.HasPrefix(s, "http://"), strings.HasPrefix(s, "https://"):
		c := Check{Kind: HTTP, URL: s}
		_, err := c.port()
		return c, err
	case strings.HasPrefix(s, execPrefix):
		argv := strings.Fields(strings.TrimPrefix(s, execPrefix))
		if len(argv) == 0 {
			return Check{}, errors.New("exec: names no program")
		}
		return Check{Kind: Exec, Argv: argv}, nil
	}
	return Check{}, fmt.Errorf("%q is not auto, tcp, postgres, mysql, redis, an http:// or https:// URL, or exec:PROGRAM", s)
}

// Port returns the port of an HTTP check's URL; 0 for other kinds.
func (c Check) Port() uint16 {
	p, _ := c.port()
	return p
}

// Address returns the host and port of an HTTP check's URL.
func (c Check) Address() string {
	u, err := url.Parse(c.URL)
	if err != nil {
		return "" // Parse refuses it
	}
	return net.JoinHostPort(u.Hostname(), strconv.Itoa(int(c.Port())))
}

func (c Check) port() (uint16, error) {
	if c.Kind != HTTP {
		return 0, nil
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return 0, err
	case u.Hostname() == "":
		return 0, fmt.Errorf("%q has no host", c.URL)
	case u.Port() == "" && u.Scheme == "https":
		return 443, nil
	case u.Port() == "":
		return 80, nil
	}
	p, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil || p == 0 {
		return 0, fmt.Errorf("%q has no port from 1 to 65535", c.URL)
	}
	return uint16(p), nil
}

// Dial connects to the server.
type Dial func(ctx context.Context) (net.Conn, error)

// Ask asks once, over a connection that it closes. It returns nil if the server is ready,
// else how it answered. It ends with ctx. Exec and Auto are not asked this way: they are an
// error.
func (c Check) Ask(ctx context.Context, dial Dial) error {
	switch c.Kind {
	case "", TCP:
		return nil
	case HTTP:
		return askHTTP(ctx, c.URL, dial)
	}
	ask, ok := map[Kind]func(net.Conn) error{Postgres: askPostgres, MySQL: askMySQL, Redis: askRedis}[c.Kind]
	if !ok {
		return fmt.Errorf("a server cannot be asked by %q", c.Kind)
	}
	conn, err := dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(end); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	return ask(conn)
}

// Of returns the check for a server whose process has this name (proc_pid_comm(5)). ok is
// false for an unknown one.
func Of(process string) (c Check, ok bool) {
	kind, ok := map[string]Kind{
		"postgres": Postgres,
		"mysqld":   MySQL, "mariadbd": MySQL,
		"redis-server": Redis, "valkey-server": Redis, "keydb-server": Redis,
	}[process]
	return Check{Kind: kind}, ok
}
