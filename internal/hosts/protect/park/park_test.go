package park

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

func needsRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
}

// listen listens with or without SO_REUSEPORT.
func listen(t *testing.T, address string, reuseport, mptcp bool) net.Listener {
	t.Helper()
	return protecttest.Listen(t, "tcp4", address, reuseport, mptcp)
}

func target(t *testing.T, addresses ...string) protect.Target {
	t.Helper()
	as := protecttest.Addresses(t, addresses...)
	s, err := protect.NewSockets(as)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.Target(protect.Spec{Addresses: as})
}

// Every listener on the port gets SO_REUSEPORT during a hold. After it only the
// listeners that asked for the option have it.
func TestOptionIsTakenBack(t *testing.T) {
	needsRoot(t)
	type server struct {
		host string
		asks bool
	}
	for _, c := range []struct {
		name   string
		hold   string   // the address that is held, "" for all
		before []server // the server that is held first; the others stay
		come   []server
		want   map[string]bool
	}{
		{"at the old place", "", []server{{"127.0.0.1", false}}, []server{{"127.0.0.1", false}}, map[string]bool{"127.0.0.1": false}},
		{"at the old place, and asks", "", []server{{"127.0.0.1", true}}, []server{{"127.0.0.1", true}}, map[string]bool{"127.0.0.1": true}},
		{"at another place", "", []server{{"127.0.0.1", false}}, []server{{"0.0.0.0", false}}, map[string]bool{"0.0.0.0": false}},
		{"at another place, and asks", "", []server{{"127.0.0.1", true}}, []server{{"0.0.0.0", true}}, map[string]bool{"0.0.0.0": true}},
		{
			"at an address that is not held", "127.0.0.1",
			[]server{{"127.0.0.1", false}, {"127.0.0.2", true}},
			[]server{{"127.0.0.1", false}, {"127.0.0.3", false}},
			map[string]bool{"127.0.0.1": false, "127.0.0.2": true, "127.0.0.3": false},
		},
		{
			"one asks and one does not", "",
			[]server{{"127.0.0.1", false}, {"127.0.0.2", true}},
			[]server{{"127.0.0.1", false}},
			map[string]bool{"127.0.0.1": false, "127.0.0.2": true},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := protecttest.Look(t)
			port := netip.MustParseAddrPort(protecttest.FreePort(t)).Port()
			at := func(host string) string { return net.JoinHostPort(host, fmt.Sprint(port)) }
			var old []net.Listener
			for _, w := range c.before {
				old = append(old, listen(t, at(w.host), w.asks, false))
			}
			held := fmt.Sprint(port)
			if c.hold != "" {
				held = at(c.hold)
			}
			h, err := Backend{}.Hold(t.Context(), target(t, held))
			if err != nil {
				t.Fatal(err)
			}
			old[0].Close()
			var fresh []net.Listener
			for _, w := range c.come {
				fresh = append(fresh, listen(t, at(w.host), w.asks, false))
			}
			if err := h.Release(t.Context()); err != nil {
				t.Error(err)
			}
			want := make(map[netip.AddrPort]bool)
			for host, has := range c.want {
				want[netip.MustParseAddrPort(at(host))] = has
			}
			if got := protecttest.Reuseport(t, port); !maps.Equal(got, want) {
				t.Errorf("listeners with SO_REUSEPORT: %v, want %v", got, want)
			}
			for _, l := range append(old[1:], fresh...) {
				l.Close()
			}
			protecttest.NothingLeft(t, before)
		})
	}
}

// If a hold fails after it has parked one of two addresses, the connections that came
// meanwhile move to the old server.
func TestUndo(t *testing.T) {
	needsRoot(t)
	for name, mptcp := range map[string]bool{"plain TCP": false, "Multipath TCP": true} {
		t.Run(name, func(t *testing.T) { testUndo(t, mptcp) })
	}
}

func testUndo(t *testing.T, mptcp bool) {
	before := protecttest.Look(t)
	port := netip.MustParseAddrPort(protecttest.FreePort(t)).Port()
	old := make(map[string]net.Listener)
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		at := net.JoinHostPort(host, fmt.Sprint(port))
		old[at] = listen(t, at, false, mptcp)
	}
	to := target(t, fmt.Sprint(port))
	p, err := prepare(to)
	if err != nil {
		t.Fatal(err)
	}
	h := &held{target: to, prepared: p}
	parked := h.groups[0]
	if err := parked.park(to.Hide); err != nil { // and the second one fails
		t.Fatal(err)
	}
	const n = 20
	var clients []net.Conn
	for range n {
		c, err := net.Dial("tcp", parked.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	poll.Until(t, "all are parked", func() bool { return parked.queued() == n })
	if err := h.undo(t.Context()); err != nil {
		t.Fatal(err)
	}
	limit := time.Now().Add(protecttest.Patience)
	l := old[parked.addr.String()]
	if err := l.(*net.TCPListener).SetDeadline(limit); err != nil {
		t.Fatal(err)
	}
	for range n {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	for _, c := range clients {
		if err := c.SetDeadline(limit); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Read(make([]byte, 1)); got != 1 {
			t.Error("a client:", err)
		}
	}
	for addr, has := range protecttest.Reuseport(t, port) {
		if has {
			t.Errorf("the listener on %v has SO_REUSEPORT", addr)
		}
	}
	for _, l := range old {
		l.Close()
	}
	protecttest.NothingLeft(t, before)
}
