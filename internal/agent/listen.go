package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/control/config"
)

// Names of the doors, by which agents and service managers know them. They are
// part of what one version hands on to another.
const (
	gatewayDoor = "gateway"
	apiDoor     = "api"
	fleetDoor   = "fleet"
	socketDoor  = "socket"
)

// listeners are the agent's doors, opened before anything else so that a taken
// port is an error and not a half-started agent.
type listeners struct {
	gateway net.Listener
	api     net.Listener // nil: none
	fleet   net.Listener // nil: no other nodes
	socket  net.Listener
	doors   map[string]*handoff.Listener
}

// shut lets nobody in any more; see door.
func (l *listeners) shut() {
	for _, d := range l.doors {
		d.Stop()
	}
}

// close may come after their servers have closed them.
func (l *listeners) close() {
	for _, d := range l.doors {
		_ = d.Close()
	}
}

// listen opens the doors, or goes on with those of an agent before this one.
func (a *Agent) listen() (*listeners, error) {
	l := &listeners{doors: map[string]*handoff.Listener{}}
	for _, open := range []func(*listeners) error{a.listenGateway, a.listenAPI, a.listenFleet, a.listenUnix} {
		if err := open(l); err != nil {
			l.close()
			return nil, err
		}
	}
	var names []string
	for n := range l.doors {
		names = append(names, n)
	}
	a.listenerSet.KeepOnly(names...)
	a.listenerSet.Store()
	return l, nil
}

// openTCP opens a door for TCP. key and flag name its address in the
// configuration.
func (a *Agent) openTCP(l *listeners, name string, c net.ListenConfig, key, flag, addr string) (*handoff.Listener, error) {
	d, err := a.listenerSet.Open(name, func(at net.Addr) bool { return handoff.SameTCP(at, addr) },
		func() (net.Listener, error) { return listenWith(c, key, flag, addr) })
	if err != nil {
		return nil, err
	}
	d.KeepAlive = c.KeepAliveConfig // a socket that was taken over does not know
	l.doors[name] = d
	return d, nil
}

func (a *Agent) listenGateway(l *listeners) error {
	d, err := a.openTCP(l, gatewayDoor, net.ListenConfig{}, "gateway.listen", "--gateway", a.cfg.Gateway.Listen)
	if err == nil {
		l.gateway = d
	}
	return err
}

func listenWith(c net.ListenConfig, key, flag, addr string) (net.Listener, error) {
	l, err := c.Listen(context.Background(), "tcp", addr)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, holdfast.WithHint(fmt.Errorf("%s: %s is in use by another program", key, addr),
			fmt.Sprintf("see who has it: ss -ltnp; or take another with %s or %s", key, flag))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return l, nil
}

func (a *Agent) listenAPI(l *listeners) error {
	c := a.cfg.API
	if c.Listen == "" {
		return nil
	}
	secure, err := apiTLS(c)
	if err != nil {
		return err
	}
	d, err := a.openTCP(l, apiDoor, net.ListenConfig{}, "api.listen", "--api", c.Listen)
	if err != nil {
		return err
	}
	l.api = secure(d)
	return nil
}

// openAPI opens that door where no agent follows another; nil where there is to be
// none.
func openAPI(c config.API) (net.Listener, error) {
	if c.Listen == "" {
		return nil, nil
	}
	secure, err := apiTLS(c)
	if err != nil {
		return nil, err
	}
	l, err := listenWith(net.ListenConfig{}, "api.listen", "--api", c.Listen)
	if err != nil {
		return nil, err
	}
	return secure(l), nil
}

// apiTLS has a listener speak TLS, where there is a certificate.
func apiTLS(c config.API) (func(net.Listener) net.Listener, error) {
	if c.CertFile == "" {
		return func(l net.Listener) net.Listener { return l }, nil
	}
	cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("api.cert_file: %w", err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	return func(l net.Listener) net.Listener { return tls.NewListener(l, conf) }, nil
}

func (a *Agent) listenUnix(l *listeners) error {
	path := a.cfg.API.Socket
	d, err := a.listenerSet.Open(socketDoor, func(at net.Addr) bool { return sameSocket(at, path) },
		func() (net.Listener, error) { return listenSocket(path) })
	if err == nil {
		l.socket, l.doors[socketDoor] = d, d
	}
	return err
}

// sameSocket reports whether a unix socket is the one at the path.
func sameSocket(at net.Addr, path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == os.ModeSocket && at.Network() == "unix" && at.String() == path
}

// listenSocket listens on a unix socket that only root can reach. One that
// nobody answers on is left from an agent that is gone, and replaced.
func listenSocket(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("api.socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("api.socket: %s is there and no socket", path)
		}
		// Only "refused" says that nobody listens; one that is too busy to
		// take a connection is alive.
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, holdfast.WithHint(fmt.Errorf("api.socket: another agent listens on %s", path), "end it with: holdfast agent stop --keep; or take another with api.socket or --socket")
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("api.socket: %w", err)
		}
	}
	// The socket is root's alone from its first moment. The mask is the whole
	// process's, in which nothing else runs yet.
	mask := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(mask)
	if err != nil {
		return nil, fmt.Errorf("api.socket: %w", err)
	}
	return l, nil
}

// addresses says where the listeners serve.
func (l *listeners) addresses(c config.Config, node holdfast.NodeID) Addresses {
	a := Addresses{Node: node, Gateway: scheme(c.Gateway.CertFile) + l.gateway.Addr().String(), Socket: c.API.Socket}
	if l.api != nil {
		a.API = scheme(c.API.CertFile) + l.api.Addr().String()
	}
	return a
}

func scheme(cert string) string {
	if cert != "" {
		return "https://"
	}
	return "http://"
}
