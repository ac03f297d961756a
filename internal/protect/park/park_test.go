package park

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/lab/labtest"
	"holdfast/internal/protect"
	"holdfast/internal/protect/protecttest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

func needsRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
}

// listen listens, with SO_REUSEPORT by its own wish or without.
func listen(t *testing.T, address string, reuseport, mptcp bool) net.Listener {
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
	l, err := lc.Listen(t.Context(), "tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
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

// Whoever comes to the port during a hold is given SO_REUSEPORT. After it only
// those have it who asked for it.
func TestOptionIsTakenBack(t *testing.T) {
	needsRoot(t)
	type who struct {
		host string
		asks bool
	}
	for _, c := range []struct {
		name   string
		hold   string // the address that is held, "" for all
		before []who  // the server that is held first; the others stay
		come   []who
		want   map[string]bool
	}{
		{"at the old place", "", []who{{"127.0.0.1", false}}, []who{{"127.0.0.1", false}}, map[string]bool{"127.0.0.1": false}},
		{"at the old place, and asks", "", []who{{"127.0.0.1", true}}, []who{{"127.0.0.1", true}}, map[string]bool{"127.0.0.1": true}},
		{"at another place", "", []who{{"127.0.0.1", false}}, []who{{"0.0.0.0", false}}, map[string]bool{"0.0.0.0": false}},
		{"at another place, and asks", "", []who{{"127.0.0.1", true}}, []who{{"0.0.0.0", true}}, map[string]bool{"0.0.0.0": true}},
		{
			"at an address that is not held", "127.0.0.1",
			[]who{{"127.0.0.1", false}, {"127.0.0.2", true}},
			[]who{{"127.0.0.1", false}, {"127.0.0.3", false}},
			map[string]bool{"127.0.0.1": false, "127.0.0.2": true, "127.0.0.3": false},
		},
		{
			"one asks and one does not", "",
			[]who{{"127.0.0.1", false}, {"127.0.0.2", true}},
			[]who{{"127.0.0.1", false}},
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
				t.Errorf("who has SO_REUSEPORT: %v, want %v", got, want)
			}
			for _, l := range append(old[1:], fresh...) {
				l.Close()
			}
			protecttest.NothingLeft(t, before)
		})
	}
}
