package agent

import (
	"maps"
	"net"
	"slices"

	"holdfast"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/config"
	"holdfast/internal/sessions/gateway"
)

// Names of the listeners. The service manager and the next agent, which may have another
// version, use these names.
const (
	gatewayListener = "gateway"
	apiListener     = "api"
	fleetListener   = "fleet"
	socketListener  = "socket"
	e2bListener     = "e2b"
	tcpListener     = "tcp-" // and the session key
)

// listeners are opened before everything else, so that the agent starts nothing if
// an address is in use.
type listeners struct {
	gateway net.Listener
	api     net.Listener // nil: none
	fleet   net.Listener // nil: the node is not part of a fleet
	socket  net.Listener
	e2b     net.Listener // nil: none
	tcp     []gateway.TCPAddress
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
	for _, open := range []func(*listeners) error{a.listenClients, a.listenAPI, a.listenFleet, a.listenUnix} {
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

// listenClients opens the gateway's listeners, and that of the SDKs of E2B.
func (a *Agent) listenClients(l *listeners) (err error) {
	if l.gateway, err = a.openTCP(l, gatewayListener, net.ListenConfig{}, "gateway.listen", "--gateway", a.cfg.Gateway.Listen); err != nil {
		return err
	}
	for _, t := range a.cfg.Templates {
		if t.TCP.Listen != "" {
			d, err := a.openTCP(l, tcpListener+string(t.TCPKey()), net.ListenConfig{}, "tcp.listen of template "+t.Name, "", t.TCP.Listen)
			if err != nil {
				return err
			}
			l.tcp = append(l.tcp, gateway.TCPAddress{Listener: d, Key: t.TCPKey(), Port: t.TCP.Port})
		}
	}
	if a.cfg.E2B.Listen != "" {
		l.e2b, err = a.openTCP(l, e2bListener, net.ListenConfig{}, "e2b.listen", "", a.cfg.E2B.Listen)
	}
	return err
}

func (a *Agent) listenAPI(l *listeners) error {
	c := a.cfg.API
	if c.Listen == "" {
		return nil
	}
	secure, err := process.APITLS(c, a.log)
	if err != nil {
		return err
	}
	d, err := a.openTCP(l, apiListener, net.ListenConfig{}, "api.listen", "--api", c.Listen)
	if err == nil {
		l.api = secure(d)
	}
	return err
}

func (a *Agent) listenUnix(l *listeners) error {
	path := a.cfg.API.Socket
	d, err := a.listenerSet.Open(socketListener, func(at net.Addr) bool { return process.SameSocket(at, path) },
		func() (net.Listener, error) { return process.ListenSocket(path) })
	if err == nil {
		l.socket, l.all[socketListener] = d, d
	}
	return err
}

// addresses returns the addresses of the listeners.
func (l *listeners) addresses(c config.Config, node holdfast.NodeID) Addresses {
	a := Addresses{Node: node, Gateway: process.Scheme(c.Gateway.CertFile) + l.gateway.Addr().String(), Socket: c.API.Socket}
	if l.api != nil {
		a.API = process.Scheme(c.API.CertFile) + l.api.Addr().String()
	}
	return a
}
