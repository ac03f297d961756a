package protect

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect/ready"
	"holdfast/internal/platform/linux/netns"
	"holdfast/internal/platform/linux/sockdiag"
)

// reachFreely connects to a listener that is not held.
func reachFreely(ctx context.Context, to sockdiag.Listener) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addressOf(to).String())
}

// reachIn is reachFreely in the network namespace at path.
func reachIn(path string) reach {
	return func(ctx context.Context, to sockdiag.Listener) (c net.Conn, err error) {
		err = netns.Do(path, func() error {
			c, err = reachFreely(ctx, to)
			return err
		})
		return c, err
	}
}

// ReachPast connects to a listener past a hold. Only the connect needs that; an
// established connection is not held.
func ReachPast(h Held) func(ctx context.Context, to sockdiag.Listener) (net.Conn, error) {
	return func(ctx context.Context, to sockdiag.Listener) (net.Conn, error) {
		at := addressOf(to)
		end := func() {}
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if e := c.Control(func(fd uintptr) {
				var from netip.AddrPort
				if from, err = bindTo(int(fd), at.Addr()); err == nil {
					end, err = h.Admit(from, to)
				}
			}); e != nil {
				return e
			}
			return err
		}}
		c, err := d.DialContext(ctx, "tcp", at.String())
		if end != nil {
			end()
		}
		return c, err
	}
}

// bindTo binds a socket to an address and a free port. The source of a connection to an
// address of this host is that address.
func bindTo(fd int, a netip.Addr) (from netip.AddrPort, err error) {
	var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: a.As16()}
	if a.Is4() {
		sa = &unix.SockaddrInet4{Addr: a.As4()}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return from, err
	}
	if sa, err = unix.Getsockname(fd); err != nil {
		return from, err
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(a, uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(a, uint16(sa.Port)), nil
	}
	return from, unix.EAFNOSUPPORT
}

// maxRelayed limits the connections that a relay serves at once.
const maxRelayed = 16

// byProgram runs the program of a check of kind Exec. The program's connections would be
// held like all others, so it connects to a relay.
func (a *asker) byProgram(ctx context.Context, dial ready.Dial) error {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var relaying sync.WaitGroup
	relaying.Go(func() { relay(ctx, l, dial) })
	err = a.program(ctx, l.Addr().(*net.TCPAddr).AddrPort())
	cancel()
	l.Close()
	relaying.Wait()
	return err
}

// relay connects the clients of l to the server, until l is closed. ctx ends the
// connections.
func relay(ctx context.Context, l net.Listener, dial ready.Dial) {
	var all sync.WaitGroup
	defer all.Wait()
	places := make(chan struct{}, maxRelayed)
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			defer client.Close()
			server, err := dial(ctx)
			if err != nil {
				return
			}
			defer server.Close()
			stop := context.AfterFunc(ctx, func() { client.Close(); server.Close() })
			defer stop()
			all.Go(func() { pass(server, client) })
			pass(client, server)
		})
	}
}

// pass copies until the end of from, and passes the end on.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if t, ok := to.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}
