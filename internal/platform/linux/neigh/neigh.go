// Package neigh has the kernel ask anew for the link address of a neighbour that
// has not answered, arp(7).
package neigh

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AskAgain forgets that ip, which has not to be this host's own, does not answer:
// what is sent there next asks for it at once. The kernel itself asks once a second,
// three times, and whoever sends meanwhile waits for that, also where the address
// has just been given to another container. An address that answers, or that nobody
// has asked for, is left alone. It needs CAP_NET_ADMIN in this network namespace.
func AskAgain(ip net.IP) error {
	routes, err := netlink.RouteGet(ip)
	if err != nil {
		return fmt.Errorf("find the way to %v: %w", ip, err)
	}
	for _, r := range routes {
		if r.Gw != nil { // ip is nobody's neighbour here
			continue
		}
		if err := forget(r.LinkIndex, ip); err != nil {
			return fmt.Errorf("have the kernel ask again for %v: %w", ip, err)
		}
	}
	return nil
}

func forget(link int, ip net.IP) error {
	family := netlink.FAMILY_V6
	if ip.To4() != nil {
		family = netlink.FAMILY_V4
	}
	all, err := netlink.NeighList(link, family)
	if err != nil {
		return err
	}
	for _, n := range all {
		if !n.IP.Equal(ip) || n.State&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) == 0 {
			continue
		}
		// Of one that has gone meanwhile the kernel says ENOENT.
		if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}
