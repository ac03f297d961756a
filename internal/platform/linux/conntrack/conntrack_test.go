package conntrack

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/threads"
)

// Entries of both families are read as they were inserted, in a network namespace of its own. The reply's address is that of the
// server behind a translation.
func TestFlows(t *testing.T) {
	want := []Flow{
		{unix.IPPROTO_UDP, netip.MustParseAddrPort("10.1.2.3:5000"), netip.MustParseAddrPort("198.51.100.1:53")},
		{unix.IPPROTO_UDP, netip.MustParseAddrPort("10.1.2.4:5001"), netip.MustParseAddrPort("172.17.0.2:8053")},
		{unix.IPPROTO_UDP, netip.MustParseAddrPort("[2001:db8::1]:5002"), netip.MustParseAddrPort("[2001:db8::2]:53")},
	}
	sent := []netip.AddrPort{want[0].Server, netip.MustParseAddrPort("203.0.113.1:53"), want[2].Server}
	err := threads.Spend(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if none, err := Flows(10); err != nil || len(none) > 0 {
			t.Errorf("an empty table: %v, %v", none, err)
		}
		for i, f := range want {
			if err := insert(f, sent[i]); err != nil {
				return err
			}
		}
		got, err := Flows(10)
		slices.SortFunc(got, func(a, b Flow) int { return int(a.Client.Port()) - int(b.Client.Port()) })
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v", got, err)
		}
		if some, err := Flows(2); err != nil || len(some) != 2 {
			t.Errorf("%v, %v", some, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// insert creates an entry whose first packet was sent to an address.
func insert(f Flow, to netip.AddrPort) error {
	family := netlink.InetFamily(unix.AF_INET)
	if f.Client.Addr().Is6() {
		family = unix.AF_INET6
	}
	tuple := func(from, to netip.AddrPort) netlink.IPTuple {
		return netlink.IPTuple{Protocol: f.Protocol, SrcIP: net.IP(from.Addr().AsSlice()), SrcPort: from.Port(), DstIP: net.IP(to.Addr().AsSlice()), DstPort: to.Port()}
	}
	return netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
		FamilyType: uint8(family), TimeOut: 60, Forward: tuple(f.Client, to), Reverse: tuple(f.Server, f.Client),
	})
}

func TestMalformed(t *testing.T) {
	for _, b := range [][]byte{nil, {1, 2}, {0, 0, 0, 0, 9}, {0, 0, 0, 0, 40, 0, 1, 0}} {
		if f, err := parse(b); err == nil {
			t.Errorf("%v: %+v", b, f)
		}
	}
}
