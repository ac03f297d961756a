package agent

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/config"
)

// Names of the listeners. The service manager and the next agent, which may have another
// version, use these names.
const (
	gatewayListener = "gateway"
	apiListener     = "api"
	fleetListener   = "fleet"
	socketListener  = "socket"
)

// listeners are opened before everything else, so that the agent starts nothing if
// an address is in use.
type listeners struct {
	gateway net.Listener
	api     net.Listener // nil: none
	fleet   net.Listener // nil: the node is not part of a fleet
	socket  net.Listener
	all     map[string]*handoff.Listener
}

// stop stops accepting; see handoff.Listener.
func (l *listeners) stop() {
	for _, d := range l.all {
		d.Stop()
	}
}

// close closes the listeners. Their servers may have closed them already.
func (l *listeners) close() {
	for _, d := range l.all {
		_ = d.Close()
	}
}

// listen opens the listeners, on the sockets of the agent before this one if their
// addresses match.
func (a *Agent) listen() (*listeners, error) {
	l := &listeners{all: map[string]*handoff.Listener{}}
	for _, open := range []func(*listeners) error{a.listenGateway, a.listenAPI, a.listenFleet, a.listenUnix} {
		if err := open(l); err != nil {
			l.close()
			return nil, err
		}
	}
	a.listenerSet.KeepOnly(slices.Collect(maps.Keys(l.all))...)
	a.listenerSet.Store()
	return l, nil
}

// openTCP opens a TCP listener. key and flag name its address in the configuration.
func (a *Agent) openTCP(l *listeners, name string, c net.ListenConfig, key, flag, addr string) (*handoff.Listener, error) {
	d, err := a.listenerSet.Open(name, func(at net.Addr) bool { return handoff.SameTCP(at, addr) },
		func() (net.Listener, error) { return process.Listen(c, key, flag, addr) })
	if err != nil {
		return nil, err
	}
	d.KeepAlive = c.KeepAliveConfig // an inherited socket does not have it
	l.all[name] = d
	return d, nil
}

func (a *Agent) listenGateway(l *listeners) error {
	d, err := a.openTCP(l, gatewayListener, net.ListenConfig{}, "gateway.listen", "--gateway", a.cfg.Gateway.Listen)
	if err == nil {
		l.gateway = d
	}
	return err
}

func (a *Agent) listenAPI(l *listeners) error {
	c := a.cfg.API
	if c.Listen == "" {
		return nil
	}
	secure, err := process.APITLS(c)
	if err != nil {
		return err
	}
	d, err := a.openTCP(l, apiListener, net.ListenConfig{}, "api.listen", "--api", c.Listen)
	if err != nil {
		return err
	}
	l.api = secure(d)
	return nil
}

func (a *Agent) listenUnix(l *listeners) error {
	path := a.cfg.API.Socket
	d, err := a.listenerSet.Open(socketListener, func(at net.Addr) bool { return sameSocket(at, path) },
		func() (net.Listener, error) { return listenSocket(path) })
	if err == nil {
		l.socket, l.all[socketListener] = d, d
	}
	return err
}

// sameSocket reports whether at is the address of the unix socket at path.
func sameSocket(at net.Addr, path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == os.ModeSocket && at.Network() == "unix" && at.String() == path
}

// listenSocket listens on a unix socket that only root can connect to. It replaces the
// socket of an agent that has exited, on which no process listens.
func listenSocket(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("api.socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("api.socket: %s exists and is no socket", path)
		}
		// Only ECONNREFUSED means that no process listens: an agent that is too busy
		// to accept is alive.
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, holdfast.WithHint(fmt.Errorf("api.socket: another agent listens on %s", path), "end it with: holdfast agent stop --keep; or set another path with api.socket or --socket")
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("api.socket: %w", err)
		}
	}
	// The mask makes the socket accessible to root only from its creation on. It
	// applies to the whole process, which runs no other goroutine that creates files
	// yet.
	mask := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(mask)
	if err != nil {
		return nil, fmt.Errorf("api.socket: %w", err)
	}
	return l, nil
}

// addresses returns the addresses of the listeners.
func (l *listeners) addresses(c config.Config, node holdfast.NodeID) Addresses {
	a := Addresses{Node: node, Gateway: process.Scheme(c.Gateway.CertFile) + l.gateway.Addr().String(), Socket: c.API.Socket}
	if l.api != nil {
		a.API = process.Scheme(c.API.CertFile) + l.api.Addr().String()
	}
	return a
}
