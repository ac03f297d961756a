package neigh_test

import (
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"holdfast/internal/platform/linux/neigh"
)

// ownNet moves this goroutine to a new network namespace, which ends with its thread.
func ownNet(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a network namespace needs root")
	}
	runtime.LockOSThread()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
}

// A failed neighbour entry is resolved again at once. Entries of reachable and of
// unknown neighbours are left alone.
func TestAskAgain(t *testing.T) {
	ownNet(t)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"near", "far"} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	near, err := netlink.LinkByName("near")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr("10.9.0.1/24")
	if err == nil {
		err = netlink.AddrAdd(near, addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	silent, known, unasked := net.IPv4(10, 9, 0, 2), net.IPv4(10, 9, 0, 3), net.IPv4(10, 9, 0, 4)
	mac, _ := net.ParseMAC("02:00:00:00:00:03")
	if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: near.Attrs().Index, IP: known, HardwareAddr: mac, State: netlink.NUD_REACHABLE}); err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: silent, Port: 9})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for end := time.Now().Add(10 * time.Second); states(t, near)[silent.String()]&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) == 0; {
		_, _ = conn.Write([]byte("x")) // an earlier packet may have been undeliverable
		if time.Now().After(end) {
			t.Fatalf("the kernel does not resolve %v: %v", silent, states(t, near))
		}
	}
	for _, ip := range []net.IP{silent, known, unasked} {
		if err := neigh.AskAgain(ip); err != nil {
			t.Error(err)
		}
	}
	got := states(t, near)
	if s, ok := got[silent.String()]; ok {
		t.Errorf("the entry of %v is still failed (state %#x)", silent, s)
	}
	if got[known.String()] != netlink.NUD_REACHABLE {
		t.Errorf("the reachable neighbour is in state %#x", got[known.String()])
	}
	if err := neigh.AskAgain(net.IPv4(192, 0, 2, 1)); err == nil {
		t.Error("an unreachable address has a route")
	}
}

func states(t *testing.T, link netlink.Link) map[string]int {
	t.Helper()
	all, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, n := range all {
		out[n.IP.String()] = n.State
	}
	return out
}
