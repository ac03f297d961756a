package vethnet_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"holdfast/internal/platform/linux/vethnet"
)

// A bridge gets no subnet that this host reaches in another way, and keeps the one that it
// has.
func TestFreeSubnet(t *testing.T) {
	inNamespace(t)
	candidates := []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("10.6.0.0/16")}
	get := func() netip.Prefix {
		p, err := vethnet.FreeSubnet("freesubnet", candidates)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := get(); p != candidates[0] {
		t.Errorf("without routes: %v", p)
	}
	uplink := device(t, "uplink", "10.5.7.1/24")
	if p := get(); p != candidates[1] {
		t.Errorf("beside an address in the first: %v", p)
	}
	index := uplink.Attrs().Index
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	_, private, _ := net.ParseCIDR("10.0.0.0/8")
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: all}); err != nil {
		t.Fatal(err)
	}
	if p := get(); p != candidates[1] {
		t.Errorf("beside a default route: %v", p)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: private, Table: 100}); err != nil {
		t.Fatal(err)
	}
	if p, err := vethnet.FreeSubnet("freesubnet", candidates); !errors.Is(err, vethnet.ErrNoSubnet) {
		t.Errorf("beside a route to 10.0.0.0/8: %v, %v", p, err)
	}
	device(t, "freesubnet", "10.9.0.1/16")
	if p := get(); p != netip.MustParsePrefix("10.9.0.0/16") {
		t.Errorf("of a bridge that exists: %v", p)
	}
}

// device makes a bridge with an address.
func device(t *testing.T, name, addr string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	link := &netlink.Bridge{LinkAttrs: attrs}
	a, err := netlink.ParseAddr(addr)
	if err == nil {
		err = netlink.LinkAdd(link)
	}
	if err == nil {
		err = netlink.AddrAdd(link, a)
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	return link
}
