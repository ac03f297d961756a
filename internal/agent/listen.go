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
	"holdfast/internal/config"
)

// listeners are the agent's doors, opened before anything else so that a taken
// port is an error and not a half-started agent.
type listeners struct {
	gateway net.Listener
	api     net.Listener // nil: none
	fleet   net.Listener // nil: no other nodes
	socket  net.Listener
}

func (l *listeners) close() {
	for _, x := range []net.Listener{l.gateway, l.api, l.fleet, l.socket} {
		if x != nil {
			x.Close() // closed already where it was served
		}
	}
}

func (a *Agent) listen() (*listeners, error) {
	l := &listeners{}
	var err error
	if l.gateway, err = listenTCP("gateway.listen", "--gateway", a.cfg.Gateway.Listen); err != nil {
		return nil, err
	}
	if l.api, err = listenAPI(a.cfg.API); err == nil {
		l.fleet, err = a.listenFleet()
	}
	if err == nil {
		l.socket, err = listenSocket(a.cfg.API.Socket)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func listenTCP(key, flag, addr string) (net.Listener, error) {
	return listenWith(net.ListenConfig{}, key, flag, addr)
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

// listenAPI returns nil where there is to be none.
func listenAPI(c config.API) (net.Listener, error) {
	if c.Listen == "" {
		return nil, nil
	}
	var conf *tls.Config
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("api.cert_file: %w", err)
		}
		conf = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	l, err := listenTCP("api.listen", "--api", c.Listen)
	if err != nil || conf == nil {
		return l, err
	}
	return tls.NewListener(l, conf), nil
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
