// Package neigh makes the kernel resolve the link address of an unreachable neighbour
// again (arp(7)).
package neigh

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AskAgain deletes the failed neighbour entry of ip, so that the next packet resolves
// it at once. The kernel itself retries once a second, three times, and senders wait
// for that, even if the address has just been given to another container. ip must not
// be this host's own. AskAgain leaves entries alone that are not failed. It needs
// CAP_NET_ADMIN in this network namespace.
func AskAgain(ip net.IP) error {
	routes, err := netlink.RouteGet(ip)
	if err != nil {
		return fmt.Errorf("find the route to %v: %w", ip, err)
	}
	for _, r := range routes {
		if r.Gw != nil { // ip is behind a gateway, and not a neighbour
			continue
		}
		if err := forget(r.LinkIndex, ip); err != nil {
			return fmt.Errorf("make the kernel resolve %v again: %w", ip, err)
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
		// ENOENT: the entry is gone already.
		if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}
