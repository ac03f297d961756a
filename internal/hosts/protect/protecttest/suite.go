package protecttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
)

// Run is the suite that every backend that holds has to pass. It works in the network
// namespace of this process, which must belong to the test, and needs root. The test
// binary has to implement RoleServer. With unordered, Run does not check the order.
func Run(t *testing.T, b protect.Backend, unordered bool) {
	for _, c := range []struct {
		name      string
		addresses []string
	}{
		{"IPv4", []string{"127.0.0.1:0"}},
		{"IPv6", []string{"[::1]:0"}},
		{"all addresses", []string{"[::]:0"}},
		{"several ports", []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0"}},
	} {
		t.Run(c.name, func(t *testing.T) { testHold(t, b, freePorts(t, c.addresses)) })
	}
	t.Run("plain TCP", func(t *testing.T) { testHold(t, b, freePorts(t, []string{"127.0.0.1:0"}), "plain") })
	if !unordered {
		t.Run("order", func(t *testing.T) { order(t, b) })
	}
	t.Run("again and again", func(t *testing.T) { testAgain(t, b) })
	t.Run("old server stays", func(t *testing.T) { testOldStays(t, b) })
	t.Run("nothing listens", func(t *testing.T) { testNothing(t, b) })
	t.Run("probe", func(t *testing.T) { testProbe(t, b) })
	t.Run("admits one", func(t *testing.T) { testAdmit(t, b) })
	t.Run("no server comes", func(t *testing.T) { testNoServer(t, b) })
}

// freePorts returns the addresses with free ports (see ListenBelow).
func freePorts(t testing.TB, addresses []string) []string {
	t.Helper()
	var out []string
	for _, a := range addresses {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			t.Fatal(err)
		}
		var l net.Listener
		ListenBelow(t, host, func(address string) (err error) {
			l, err = net.Listen("tcp", address)
			return err
		})
		out = append(out, l.Addr().String())
		defer l.Close()
	}
	return out
}

// ListenBelow calls listen with addresses of a host, until it succeeds. The ports are below those
// of clients (ip_local_port_range, from 32768). Otherwise a client could take a port while the
// server is down, and even connect to itself.
func ListenBelow(t testing.TB, host string, listen func(address string) error) {
	t.Helper()
	var err error
	for range 100 {
		if err = listen(net.JoinHostPort(host, strconv.Itoa(10000+rand.IntN(20000)))); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// Listen listens until the end of the test, with or without SO_REUSEPORT, and with or
// without Multipath TCP, which Go's servers use.
func Listen(t testing.TB, network, address string, reuseport, mptcp bool) net.Listener {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			if reuseport {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
		}); e != nil {
			return e
		}
		return err
	}}
	lc.SetMultipathTCP(mptcp)
	l, err := lc.Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// FreePort returns an address of loopback with a free port.
func FreePort(t testing.TB) string {
	t.Helper()
	return freePorts(t, []string{"127.0.0.1:0"})[0]
}

// Addresses parses the addresses.
func Addresses(t testing.TB, addresses ...string) []protect.Address {
	t.Helper()
	var out []protect.Address
	for _, a := range addresses {
		p, err := protect.ParseAddress(a)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// target returns a target for the backends in this process.
func target(t testing.TB, addresses []string) (protect.Target, *protect.Sockets) {
	t.Helper()
	as := Addresses(t, addresses...)
	s, err := protect.NewSockets(as)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.Target(protect.Spec{Addresses: as}), s
}

func hold(t testing.TB, b protect.Backend, to protect.Target) protect.Held {
	t.Helper()
	h, err := b.Hold(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func release(t testing.TB, h protect.Held) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	if err := h.Release(ctx); err != nil {
		t.Error("release:", err)
	}
}

// dialable returns an address to which a client can connect.
func dialable(address string) string {
	ap := netip.MustParseAddrPort(address)
	if ap.Addr().IsUnspecified() {
		return "127.0.0.1:" + strconv.Itoa(int(ap.Port()))
	}
	return address
}

// testHold checks that clients wait while no server runs, and that the new one serves all.
func testHold(t *testing.T, b protect.Backend, addresses []string, more ...string) {
	before := Look(t)
	argv := GoServer(strings.Join(addresses, ","), more...)
	old := Start(t, 0, argv...)
	for _, a := range addresses {
		AwaitListening(t, dialable(a))
	}
	to, sockets := target(t, addresses)
	h := hold(t, b, to)
	old.Kill()
	const each = 40
	var c Crowd
	for _, a := range addresses {
		c.Come(dialable(a), each)
	}
	all := each * len(addresses)
	eventually(t, "all clients wait", func() bool { return h.Stats().Waiting == all })
	if n := c.Finished(); n != 0 {
		t.Errorf("%d clients did not wait", n)
	}
	fresh := Start(t, 0, argv...)
	awaitListeners(t, sockets, len(addresses))
	if n := c.Finished(); n != 0 {
		t.Errorf("%d clients did not wait for the release", n)
	}
	release(t, h)
	c.Wait(t)
	s := h.Stats()
	if s.Held != all || s.Waiting != 0 || s.Longest <= 0 {
		t.Errorf("stats after the release: %+v, want %d held", s, all)
	}
	if q := s.Waits; b.Name() != protect.Plug && (q == nil || q.P50 <= 0 || q.P50 > q.P90 || q.P90 > q.P99 || q.P99 > s.Longest) {
		t.Errorf("waits: %+v, the longest %v", q, s.Longest)
	}
	for _, a := range addresses {
		if _, err := Ask(dialable(a), "/"); err != nil {
			t.Error("after the release:", err)
		}
	}
	NoReuseport(t, addresses...)
	fresh.Kill()
	NothingLeft(t, before)
}

// awaitListeners waits until n sockets of servers, not of a backend, listen.
func awaitListeners(t testing.TB, s *protect.Sockets, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d sockets listen", n), func() bool {
		ls, err := s.Listeners()
		if err != nil {
			t.Fatal(err)
		}
		return len(ls) == n
	})
}

// order checks that the clients are accepted in the order of their connects.
func order(t *testing.T, b protect.Backend) {
	address := FreePort(t)
	old := Start(t, 0, GoServer(address)...)
	AwaitListening(t, address)
	to, sockets := target(t, []string{address})
	h := hold(t, b, to)
	old.Kill()
	const n = 100
	answers := make([]string, n)
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			var err error
			if answers[i], err = Ask(address, "/"); err != nil {
				t.Error("a client:", err)
			}
		})
		eventually(t, "the next client waits", func() bool { return h.Stats().Waiting == i+1 })
	}
	Start(t, 0, GoServer(address)...)
	awaitListeners(t, sockets, 1)
	release(t, h)
	clients.Wait()
	last := 0
	for i, a := range answers {
		number, _, _ := strings.Cut(a, " ")
		got, err := strconv.Atoi(number)
		if err != nil || got <= last {
			t.Fatalf("client %d was accepted as number %q, the one before as %d", i, a, last)
		}
		last = got
	}
}

// every is the interval of clients. An emulated machine can serve that many even on a
// busy host.
const every = 25 * time.Millisecond

// testAgain holds several times while clients connect all the time.
func testAgain(t *testing.T, b protect.Backend) {
	before := Look(t)
	address := FreePort(t)
	server := Start(t, 0, GoServer(address)...)
	AwaitListening(t, address)
	load := StartLoad(t, address, every, nil)
	for range 5 {
		seen := load.Total()
		eventually(t, "clients come", func() bool { return load.Total() > seen+10 })
		to, sockets := target(t, []string{address})
		h := hold(t, b, to)
		// The drain, not the backend, handles the connections that the old server has accepted.
		if d, err := sockets.Drain(Patience, false, nil); err != nil || d.Left > 0 {
			t.Fatalf("drain: %+v, %v", d, err)
		}
		server.Kill()
		awaitListeners(t, sockets, 0)
		server = Start(t, 0, GoServer(address)...)
		awaitListeners(t, sockets, 1)
		release(t, h)
		NoReuseport(t, address)
	}
	total, failed, longest := load.Stop()
	t.Logf("%d clients, longest %v", total, longest)
	for _, err := range failed {
		t.Error("a client:", err)
	}
	server.Kill()
	NothingLeft(t, before)
}

// testOldStays checks that the old server continues if it is not restarted.
func testOldStays(t *testing.T, b protect.Backend) {
	before := Look(t)
	address := FreePort(t)
	server := Start(t, 0, GoServer(address)...)
	AwaitListening(t, address)
	to, sockets := target(t, []string{address})
	h := hold(t, b, to)
	var c Crowd
	c.Come(address, 20)
	eventually(t, "all clients wait", func() bool { return h.Stats().Waiting == 20 })
	release(t, h)
	c.Wait(t)
	awaitListeners(t, sockets, 1)
	NothingLeft(t, before)
	NoReuseport(t, address)
	server.Kill()
	// Neither an option nor a socket of the hold keeps the address.
	next, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
}

// testNothing checks that without a listener nothing is held, and nothing is left.
func testNothing(t *testing.T, b protect.Backend) {
	before := Look(t)
	to, _ := target(t, []string{FreePort(t)})
	if err := b.Probe(t.Context(), to); err == nil {
		t.Error("Probe accepts a port without a listener")
	}
	NothingLeft(t, before)
}

// testProbe checks that a probe delays no client.
func testProbe(t *testing.T, b protect.Backend) {
	before := Look(t)
	address := FreePort(t)
	Start(t, 0, GoServer(address)...)
	AwaitListening(t, address)
	to, _ := target(t, []string{address})
	load := StartLoad(t, address, every, nil)
	for range 10 {
		if err := b.Probe(t.Context(), to); err != nil {
			t.Error(err)
		}
	}
	if total, failed, _ := load.Stop(); len(failed) > 0 {
		t.Errorf("of %d clients: %v", total, failed)
	}
	NothingLeft(t, before)
}

// testAdmit checks that the new server can be asked while all clients wait, and that no
// client passes with the questions.
func testAdmit(t *testing.T, b protect.Backend) {
	before := Look(t)
	for _, address := range freePorts(t, []string{"127.0.0.1:0", "[::1]:0", "[::]:0"}) {
		argv := GoServer(address, "plain")
		old := Start(t, 0, argv...)
		AwaitListening(t, dialable(address))
		to, sockets := target(t, []string{address})
		to.Asked = true
		h := hold(t, b, to)
		old.Kill()
		fresh := Start(t, 0, argv...)
		awaitListeners(t, sockets, 1)
		var c Crowd
		c.Come(dialable(address), 20)
		eventually(t, "all clients wait", func() bool { return h.Stats().Waiting == 20 })
		ls, err := sockets.Listeners()
		if err != nil || len(ls) != 1 {
			t.Fatal(ls, err)
		}
		for range 5 {
			if _, err := ask(dialable(address), "/", func(string, string) (net.Conn, error) {
				return protect.ReachPast(h)(t.Context(), ls[0])
			}); err != nil {
				t.Errorf("a question to %s: %v", address, err)
			}
		}
		c.Come(dialable(address), 20)
		eventually(t, "all clients wait", func() bool { return h.Stats().Waiting == 40 })
		if n := c.Finished(); n != 0 {
			t.Errorf("%d clients did not wait", n)
		}
		release(t, h)
		c.Wait(t)
		NoReuseport(t, address)
		fresh.Kill()
	}
	NothingLeft(t, before)
}

// testNoServer checks that a release without a server releases the clients, too.
func testNoServer(t *testing.T, b protect.Backend) {
	before := Look(t)
	address := FreePort(t)
	server := Start(t, 0, GoServer(address)...)
	AwaitListening(t, address)
	to, _ := target(t, []string{address})
	h := hold(t, b, to)
	server.Kill()
	var c Crowd
	c.Come(address, 10)
	eventually(t, "all clients wait", func() bool { return h.Stats().Waiting == 10 })
	release(t, h)
	if n := len(c.Failures()); n != 10 {
		t.Errorf("%d of 10 clients were refused", n)
	}
	NothingLeft(t, before)
}
