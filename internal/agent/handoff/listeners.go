package handoff

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"

	"holdfast/internal/platform/linux/listenfd"
)

// Listeners is the set of listening sockets of an agent, by name. The sockets
// outlive an agent that hands over: clients that connect in between wait in the
// queue of a socket. It is for one goroutine at a time.
type Listeners struct {
	sockets map[string]*listenfd.Socket
	log     *slog.Logger
}

// NewListeners returns a set of the sockets, which it takes over.
func NewListeners(sockets []*listenfd.Socket, log *slog.Logger) *Listeners {
	l := &Listeners{sockets: map[string]*listenfd.Socket{}, log: log}
	for _, s := range sockets {
		l.put(s)
	}
	return l
}

func (l *Listeners) put(s *listenfd.Socket) {
	if old := l.sockets[s.Name]; old != nil {
		old.Close()
	}
	l.sockets[s.Name] = s
}

// Open returns a listener of that name: on the socket in the set where fits reports
// true for its address, else on a new one from listen.
func (l *Listeners) Open(name string, fits func(net.Addr) bool, listen func() (net.Listener, error)) (*Listener, error) {
	if s := l.sockets[name]; s != nil {
		old, err := s.Listen()
		if err != nil {
			return nil, err
		}
		if fits(old.Addr()) {
			l.log.Info("took over a listening socket", "name", name, "address", old.Addr())
			return newListener(old), nil
		}
		l.log.Info("a listening socket has the wrong address and is closed", "name", name, "address", old.Addr())
		old.Close()
		l.drop(name)
	}
	fresh, err := listen()
	if err != nil {
		return nil, err
	}
	if u, ok := fresh.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // the next agent may still accept on it
	}
	// Every listener of package net is a syscall.Conn.
	s, err := listenfd.Of(name, fresh.(syscall.Conn))
	if err != nil {
		return nil, errors.Join(err, fresh.Close())
	}
	l.put(s)
	return newListener(fresh), nil
}

// drop closes a socket and removes it from the service manager.
func (l *Listeners) drop(name string) {
	l.sockets[name].Close()
	delete(l.sockets, name)
	if err := listenfd.Unstore(name); err != nil {
		l.log.Warn("the service manager keeps an unused socket open", "err", err)
	}
}

// KeepOnly closes all sockets but the named ones.
func (l *Listeners) KeepOnly(names ...string) {
	for n := range l.sockets {
		if !slices.Contains(names, n) {
			l.drop(n)
		}
	}
}

// Store stores the sockets with the service manager, if there is one. It passes them
// to the next agent, also after a crash. A failure is logged.
func (l *Listeners) Store() {
	if err := listenfd.Store(l.list()...); err != nil {
		l.log.Warn("connections will be refused while the agent restarts or after a crash", "err", err)
	}
}

func (l *Listeners) list() []*listenfd.Socket { return slices.Collect(maps.Values(l.sockets)) }

func (l *Listeners) close() {
	for n, s := range l.sockets {
		s.Close()
		delete(l.sockets, n)
	}
}

// Listener can stop accepting before it is closed. Its server then continues with its
// open connections.
type Listener struct {
	net.Listener
	// KeepAlive is set on accepted connections; the zero value leaves the default of
	// package net.
	KeepAlive net.KeepAliveConfig
	closed    chan struct{}
	once      sync.Once
}

func newListener(l net.Listener) *Listener {
	return &Listener{Listener: l, closed: make(chan struct{})}
}

// Accept implements net.Listener. After Stop it blocks until Close.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if errors.Is(err, net.ErrClosed) {
		<-l.closed
	}
	if tcp, ok := c.(*net.TCPConn); ok && l.KeepAlive.Enable {
		_ = tcp.SetKeepAliveConfig(l.KeepAlive) // fails where the client has gone
	}
	return c, err
}

// Stop accepts no more connections. Connections in the queue of the socket wait for
// the next process that accepts on it.
func (l *Listener) Stop() { l.Listener.Close() }

// Close implements net.Listener. It may follow Stop.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	err := l.Listener.Close()
	if errors.Is(err, net.ErrClosed) { // after Stop
		return nil
	}
	return err
}

// SameTCP reports whether at, the address of a socket, is the address that a
// configuration names. Port 0 matches every port.
func SameTCP(at net.Addr, want string) bool {
	is, ok := at.(*net.TCPAddr)
	to, err := net.ResolveTCPAddr("tcp", want)
	if !ok || err != nil || to.Port != 0 && to.Port != is.Port {
		return false
	}
	// Package net treats 0.0.0.0, [::] and an empty host alike.
	if all := to.IP == nil || to.IP.IsUnspecified(); all || is.IP.IsUnspecified() {
		return all && is.IP.IsUnspecified()
	}
	return to.IP.Equal(is.IP) && to.Zone == is.Zone
}
