package lab

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
)

// A container that starts does not change the hardware address of the bridge, which the others
// have in their ARP tables.
func TestHardwareAddressOfTheBridgeStays(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: needs a network namespace, and root")
	}
	b, err := newBridge()
	if err != nil {
		t.Fatal(err)
	}
	defer b.remove()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "lower"
	attrs.HardwareAddr = net.HardwareAddr{0x02, 0, 0, 0, 0, 1}
	attrs.MasterIndex = b.link.Index
	port := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}
	if err := netlink.LinkAdd(port); err != nil {
		t.Fatal(err)
	}
	defer netlink.LinkDel(port)
	link, err := netlink.LinkByName(b.link.Name)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := link.Attrs().HardwareAddr.String(), b.link.HardwareAddr.String(); got != want {
		t.Errorf("the bridge has the address %s, it was %s", got, want)
	}
}
