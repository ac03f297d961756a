package lab

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
)

// maxBridges is the maximum number of concurrent engines in one lab. Their addresses are
// below 10.246.0.0.
const maxBridges = 32

// bridge is the default network of one engine. Each engine of a lab has its own addresses.
type bridge struct {
	link *netlink.Bridge
	pool string // address pool of the networks that the engine creates
}

// newBridge creates a bridge that no other engine in this lab uses. Its subnet is large
// enough for the ports of a bridge: 1,024 (BR_MAX_PORTS, net/bridge/br_private.h).
func newBridge() (*bridge, error) {
	for n := range maxBridges {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("lab%d", n)
		// Without a fixed address the bridge has the lowest address of its ports
		// (br_stp_recalculate_bridge_id, net/bridge/br_stp_if.c). If a new port changes it,
		// replies of containers that have the old one in their ARP table are lost.
		attrs.HardwareAddr = net.HardwareAddr{0x02, 0x48, 10, 213, byte(4 * n), 1}
		b := &bridge{link: &netlink.Bridge{LinkAttrs: attrs}, pool: fmt.Sprintf("10.%d.0.0/16", 214+n)}
		err := netlink.LinkAdd(b.link)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil {
			err = b.up(fmt.Sprintf("10.213.%d.1/22", 4*n))
		}
		if err != nil {
			return nil, fmt.Errorf("make a bridge: %w", err)
		}
		return b, nil
	}
	return nil, fmt.Errorf("make a bridge: %d engines run in this lab", maxBridges)
}

func (b *bridge) up(address string) error {
	addr, err := netlink.ParseAddr(address)
	if err == nil {
		err = netlink.AddrAdd(b.link, addr)
	}
	if err == nil {
		err = netlink.LinkSetUp(b.link)
	}
	if err != nil {
		return errors.Join(err, b.remove())
	}
	return nil
}

func (b *bridge) remove() error {
	if err := netlink.LinkDel(b.link); err != nil {
		return fmt.Errorf("remove bridge %s: %w", b.link.Name, err)
	}
	return nil
}
