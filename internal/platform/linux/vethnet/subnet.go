package vethnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoSubnet means that routes of this host overlap all candidates.
var ErrNoSubnet = errors.New("no subnet is free on this host")

// FreeSubnet returns the subnet of a bridge that exists, or else the first candidate that
// no route of this host overlaps, in any routing table. Default routes do not count.
// ErrNoSubnet.
func FreeSubnet(bridge string, candidates []netip.Prefix) (netip.Prefix, error) {
	p, err := freeSubnet(bridge, candidates)
	if err != nil {
		return p, fmt.Errorf("find a subnet for bridge %s: %w", bridge, err)
	}
	return p, nil
}

func freeSubnet(bridge string, candidates []netip.Prefix) (netip.Prefix, error) {
	link, err := netlink.LinkByName(bridge)
	if missing := (netlink.LinkNotFoundError{}); err != nil && !errors.As(err, &missing) {
		return netip.Prefix{}, err
	}
	if err == nil {
		addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
		if err != nil {
			return netip.Prefix{}, err
		}
		for _, a := range addrs {
			if p, ok := prefixOf(a.IPNet); ok {
				return p, nil
			}
		}
	}
	routes, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, c := range candidates {
		if !overlapped(c, routes) {
			return c, nil
		}
	}
	return netip.Prefix{}, ErrNoSubnet
}

func overlapped(p netip.Prefix, routes []netlink.Route) bool {
	for _, r := range routes {
		if to, ok := prefixOf(r.Dst); ok && to.Bits() > 0 && to.Overlaps(p) {
			return true
		}
	}
	return false
}

// prefixOf returns the masked IPv4 prefix of n.
func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	p, err := addr.Unmap().Prefix(bits)
	return p, ok && err == nil && p.Addr().Is4()
}
