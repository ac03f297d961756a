package agent

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"

	"holdfast/internal/platform/linux/listenfd"
)

// doors are the sockets that clients, people and other nodes connect to, by name.
// They outlive an agent that another one follows: who connects in between waits
// in a socket's queue. One goroutine at a time may use them.
type doors struct {
	sockets map[string]*listenfd.Socket
	log     *slog.Logger
}

func newDoors(sockets []*listenfd.Socket, log *slog.Logger) *doors {
	d := &doors{sockets: map[string]*listenfd.Socket{}, log: log}
	for _, s := range sockets {
		d.put(s)
	}
	return d
}

func (d *doors) put(s *listenfd.Socket) {
	if old := d.sockets[s.Name]; old != nil {
		old.Close()
	}
	d.sockets[s.Name] = s
}

// open returns a door of that name: the socket that is there, if it fits, or a
// new one.
func (d *doors) open(name string, fits func(net.Addr) bool, listen func() (net.Listener, error)) (*door, error) {
	if s := d.sockets[name]; s != nil {
		l, err := s.Listen()
		if err != nil {
			return nil, err
		}
		if fits(l.Addr()) {
			d.log.Info("took a socket over", "name", name, "address", l.Addr())
			return newDoor(l), nil
		}
		d.log.Info("a socket that was taken over is of no use any more", "name", name, "address", l.Addr())
		l.Close()
		d.drop(name)
	}
	l, err := listen()
	if err != nil {
		return nil, err
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // others may still accept there
	}
	// Every listener of package net can.
	s, err := listenfd.Of(name, l.(syscall.Conn))
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	d.put(s)
	return newDoor(l), nil
}

// drop closes a socket, and has a service manager forget it.
func (d *doors) drop(name string) {
	d.sockets[name].Close()
	delete(d.sockets, name)
	if err := listenfd.Unstore(name); err != nil {
		d.log.Warn("a socket of no use stays open", "err", err)
	}
}

// keepOnly drops what has none of the names.
func (d *doors) keepOnly(names ...string) {
	keep := map[string]bool{}
	for _, n := range names {
		keep[n] = true
	}
	for n := range d.sockets {
		if !keep[n] {
			d.drop(n)
		}
	}
}

// store leaves the sockets with a service manager, if there is one, which passes
// them to the next agent, whatever becomes of this one. It can do without.
func (d *doors) store() {
	if err := listenfd.Store(d.list()...); err != nil {
		d.log.Warn("a restart or crash of the agent will refuse connections meanwhile", "err", err)
	}
}

func (d *doors) list() []*listenfd.Socket {
	var all []*listenfd.Socket
	for _, s := range d.sockets {
		all = append(all, s)
	}
	return all
}

func (d *doors) close() {
	for n, s := range d.sockets {
		s.Close()
		delete(d.sockets, n)
	}
}

// door is a listener that can be shut before it is closed: then nobody comes in
// any more, while its server goes on with those who have.
type door struct {
	net.Listener
	keepAlive net.KeepAliveConfig // of those who come in; the zero value is Go's own
	closed    chan struct{}
	once      sync.Once
}

func newDoor(l net.Listener) *door { return &door{Listener: l, closed: make(chan struct{})} }

// Accept does not return once the door is shut, until it is closed.
func (d *door) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if errors.Is(err, net.ErrClosed) {
		<-d.closed
	}
	if tcp, ok := c.(*net.TCPConn); ok && d.keepAlive.Enable {
		_ = tcp.SetKeepAliveConfig(d.keepAlive) // it has gone already
	}
	return c, err
}

// shut lets nobody in any more. Those whom the kernel has connected wait in the
// socket for whoever accepts there next.
func (d *door) shut() { d.Listener.Close() }

// Close implements net.Listener.
func (d *door) Close() error {
	d.once.Do(func() { close(d.closed) })
	err := d.Listener.Close()
	if errors.Is(err, net.ErrClosed) { // it was shut
		return nil
	}
	return err
}

// sameTCP reports whether a socket's address is the one that a configuration
// names.
func sameTCP(at net.Addr, want string) bool {
	is, ok := at.(*net.TCPAddr)
	to, err := net.ResolveTCPAddr("tcp", want)
	if !ok || err != nil || to.Port != 0 && to.Port != is.Port {
		return false
	}
	// To package net 0.0.0.0, [::] and no address at all are the same.
	if all := to.IP == nil || to.IP.IsUnspecified(); all || is.IP.IsUnspecified() {
		return all && is.IP.IsUnspecified()
	}
	return to.IP.Equal(is.IP) && to.Zone == is.Zone
}
