// Package vethnet connects network namespaces to a bridge of this host, each by a
// veth pair (veth(4)) and with its own IPv4 address.
//
// A directory has one symbolic link for each reserved address. The next process, also after a
// crash, reserves no address twice and can release those of owners that are gone.
// Devices need no record: the kernel removes a pair with the namespace of one end.
//
// The ports of the bridge are isolated from each other (bridge(8), isolated):
// namespaces reach the host, and the host them, but not one another. With Config.NAT
// they also reach other networks, by NAT.
package vethnet

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/flock"
)

// Inside is the name of the device in a namespace.
const Inside = "eth0"

// Config describes a net.
type Config struct {
	// Bridge is the device's name, at most 15 bytes. It is made when it is first
	// needed, and exists until Remove.
	Bridge string
	// Subnet is IPv4, /8 to /29. Its first address is the bridge's.
	Subnet netip.Prefix
	// Dir is the directory of reserved addresses. It is made when it is first needed.
	Dir string
	// Table is the nftables table (family ip) of the NAT rules.
	Table string
	// NAT enables NAT, which is set up with the bridge. Packets of namespaces leave
	// the host with its address, replies are let in, and nothing else is forwarded
	// that was not before. Without it, firewall and forwarding are left alone; only
	// the rules that an earlier Net with this Table has left are removed by Tend and
	// Remove.
	NAT bool
}

// Net is a bridge with its addresses. Its methods may be called from any
// goroutine, and processes may share one.
type Net struct {
	bridge  string
	subnet  netip.Prefix
	gateway netip.Addr
	dir     string // of reserved addresses
	open    bool   // NAT is set up
	nat     natRules

	mu    sync.Mutex // serialises making the bridge
	index int        // the bridge's index when it was last read

	// making serialises NewNamespace. The kernel does so, too, by its lock of network devices. But a write to
	// disable_ipv6 does not wait for that lock: it is tried again until the lock is free, and uses a CPU
	// meanwhile (restart_syscall in net/ipv6/addrconf.c).
	making sync.Mutex
}

// New checks the configuration. It makes nothing yet.
func New(c Config) (*Net, error) {
	subnet := c.Subnet.Masked()
	switch {
	case !subnet.IsValid() || !subnet.Addr().Is4() || subnet.Bits() < 8 || subnet.Bits() > 29:
		return nil, fmt.Errorf("the subnet %v is not an IPv4 net of /8 to /29", c.Subnet)
	case c.Bridge == "" || len(c.Bridge) >= unix.IFNAMSIZ:
		return nil, fmt.Errorf("the name of the bridge %q is not 1 to %d bytes long", c.Bridge, unix.IFNAMSIZ-1)
	case c.Dir == "":
		return nil, errors.New("addresses need a directory")
	case c.Table == "" && c.NAT:
		return nil, errors.New("NAT needs the name of a table")
	}
	gateway := subnet.Addr().Next()
	return &Net{
		bridge: c.Bridge, subnet: subnet, gateway: gateway, dir: c.Dir, open: c.NAT,
		nat: natRules{table: c.Table, bridge: c.Bridge, subnet: subnet, tables: tables{comment: c.Table}},
	}, nil
}

// Gateway is the bridge's address.
func (n *Net) Gateway() netip.Addr { return n.gateway }

// ErrNoNAT means that only the NAT rules could not be made.
var ErrNoNAT = errors.New("NAT for containers cannot be set up")

// Attach connects the network namespace of the process pid to the bridge: its device
// Inside gets the address, and a default route through the bridge. A namespace that
// already has such a device is an error. ErrNoNAT.
func (n *Net) Attach(pid int, owner string, addr netip.Addr) error {
	err := n.attach(pid, owner, addr)
	if err != nil {
		return fmt.Errorf("connect process %d to bridge %s as %v: %w", pid, n.bridge, addr, err)
	}
	return nil
}

func (n *Net) attach(pid int, owner string, addr netip.Addr) error {
	target, err := netns.GetFromPid(pid)
	if err != nil {
		return err
	}
	defer target.Close()
	return n.connect(target, hostDevice(owner), addr)
}

// connect connects a namespace to the bridge. A device of the name that exists on this
// host is os.ErrExist.
func (n *Net) connect(target netns.NsHandle, name string, addr netip.Addr) error {
	unlock, err := n.lock(unix.LOCK_SH) // the bridge is not removed meanwhile
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.addVeth(target, name, addr); err != nil {
		return err
	}
	if n.open {
		if err := n.nat.ensure(false); err != nil {
			return errors.Join(ErrNoNAT, err, removeDevice(name))
		}
	}
	return n.setUp(target, addr)
}

// lock locks the directory of addresses, also against other processes. With LOCK_NB
// it does not wait (unix.EWOULDBLOCK).
func (n *Net) lock(how int) (unlock func(), err error) {
	if how&unix.LOCK_EX == 0 { // Remove does not make the directory
		if err := os.MkdirAll(n.dir, 0o700); err != nil {
			return nil, fmt.Errorf("lock the net: %w", err)
		}
	}
	f, err := flock.Lock(n.dir, os.O_RDONLY, how)
	if err != nil {
		return nil, fmt.Errorf("lock the net: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// DevicesEvery is in how many of its periodic calls Tend compares devices, too. With 50 sessions
// such a call took 3 ms of CPU time (perf), 1.2 of them to list the devices.
const DevicesEvery = 3

// Tend repairs the NAT rules after changes by other programs, for example a flushed
// firewall, or a started Docker that drops forwarded packets. It is called
// periodically, and does nothing without a bridge. With devices it also compares the rules
// with the host's devices, which takes longer the more containers there are.
func (n *Net) Tend(devices bool) error {
	unlock, err := n.lock(unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = netlink.LinkByName(n.bridge)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", n.bridge, err)
	}
	if !n.open {
		return n.removeNAT()
	}
	return n.nat.tend(devices)
}

// hardwareAddr returns the hardware address of the namespace with that address. It is the same
// for all users of an address, one after the other: a host that remembers the one before
// (arp(7)) would send to a device that is gone, for up to a minute. The bit 02 of the first byte marks
// a locally administered address.
func hardwareAddr(addr netip.Addr) net.HardwareAddr {
	ip := addr.As4()
	return net.HardwareAddr{0x02, 0x48, ip[0], ip[1], ip[2], ip[3]}
}

// addVeth makes the veth pair: one end on the bridge, the other in the namespace.
func (n *Net) addVeth(target netns.NsHandle, name string, addr netip.Addr) error {
	add := func() error {
		index, err := n.bridgeIndex()
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex, attrs.Flags = name, index, net.FlagUp
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: Inside, PeerHardwareAddr: hardwareAddr(addr), PeerNamespace: netlink.NsFd(target)})
	}
	err := add()
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		n.invalidate() // the bridge was removed
		err = add()
	}
	if err != nil {
		return fmt.Errorf("make the devices: %w", err)
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetIsolated(link, true)
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("put device %s on the bridge: %w", name, err), netlink.LinkDel(link))
	}
	return nil
}

// Detach removes the host's device of an owner, and with it the one in the namespace.
// A device that is gone is no error.
func (n *Net) Detach(owner string) error {
	if err := removeDevice(hostDevice(owner)); err != nil {
		return fmt.Errorf("remove the device of %s: %w", owner, err)
	}
	return nil
}

// removeDevice removes a device of this host. One that is gone is no error.
func removeDevice(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// setUp gives the namespace its address and default route.
func (n *Net) setUp(target netns.NsHandle, addr netip.Addr) error {
	inside, err := netlink.NewHandleAt(target, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in the namespace: %w", err)
	}
	defer inside.Close()
	eth, err := inside.LinkByName(Inside)
	if err == nil {
		err = inside.AddrAdd(eth, &netlink.Addr{IPNet: ipNet(addr, n.subnet.Bits())})
	}
	if err == nil {
		err = inside.LinkSetUp(eth)
	}
	if err == nil {
		err = inside.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: n.gateway.AsSlice()})
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", Inside, err)
	}
	return nil
}

// bridgeIndex returns the index of the bridge, which it makes if it is missing.
func (n *Net) bridgeIndex() (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.index != 0 {
		return n.index, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.bridge
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	if err != nil && !errors.Is(err, os.ErrExist) {
		return 0, fmt.Errorf("make bridge %s: %w", n.bridge, err)
	}
	link, err := netlink.LinkByName(n.bridge)
	if err != nil {
		return 0, fmt.Errorf("find bridge %s: %w", n.bridge, err)
	}
	if link.Type() != "bridge" {
		return 0, fmt.Errorf("%s is not a bridge but a %s", n.bridge, link.Type())
	}
	err = netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(n.gateway, n.subnet.Bits())})
	if err == nil {
		// Without a fixed address the bridge has the lowest address of its ports
		// (br_stp_recalculate_bridge_id, net/bridge/br_stp_if.c), which may change
		// with each port. A namespace with the old address in its ARP table then
		// loses packets for half a minute.
		err = netlink.LinkSetHardwareAddr(link, link.Attrs().HardwareAddr)
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return 0, fmt.Errorf("set bridge %s up: %w", n.bridge, err)
	}
	n.index = link.Attrs().Index
	return n.index, nil
}

// hasBridge reports whether the bridge was there when this process last looked.
func (n *Net) hasBridge() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.index != 0
}

func (n *Net) invalidate() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.index = 0
	n.nat.invalidate()
}

// ErrInUse means that namespaces are connected to the bridge.
var ErrInUse = errors.New("it is in use")

// Remove deletes the bridge and its NAT rules. A bridge that is gone is no error.
// With ErrInUse nothing has changed: a namespace is connected, or is being connected.
// gone, if not nil, returns the owners that have ended. Remove first removes their
// devices, which the kernel would do itself some time after the end of a namespace.
// No namespace can be connected while gone runs.
func (n *Net) Remove(gone func() ([]string, error)) error {
	if err := n.remove(gone); err != nil {
		return fmt.Errorf("remove bridge %s: %w", n.bridge, err)
	}
	return nil
}

func (n *Net) remove(gone func() ([]string, error)) error {
	unlock, err := n.lock(unix.LOCK_EX | unix.LOCK_NB)
	switch {
	case err == nil:
		defer unlock()
	case errors.Is(err, unix.EWOULDBLOCK):
		return ErrInUse
	case !errors.Is(err, fs.ErrNotExist): // without the directory no namespace is being connected
		return err
	}
	if gone != nil {
		owners, err := gone()
		if err != nil {
			return err
		}
		for _, o := range owners {
			if err := n.Detach(o); err != nil {
				return err
			}
		}
	}
	n.invalidate()
	bridge, err := netlink.LinkByName(n.bridge)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return n.removeNAT()
	}
	if err != nil {
		return err
	}
	links, err := dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			return ErrInUse
		}
	}
	// The bridge is last: as long as it exists, a later Remove deletes the rest.
	if err := n.removeNAT(); err != nil {
		return err
	}
	return netlink.LinkDel(bridge)
}

// removeNAT removes the NAT rules, including those of an earlier process.
func (n *Net) removeNAT() error {
	if n.nat.table == "" {
		return nil
	}
	exists, err := n.nat.exists()
	switch {
	case n.open && err != nil:
		return err
	case n.open || exists:
		return n.nat.remove()
	}
	return nil // the table is missing, or the kernel has no nftables
}

// hostDevice is the name of the host's device of an owner. Device names have at most 15
// bytes.
func hostDevice(owner string) string {
	h := fnv.New64a()
	h.Write([]byte(owner))
	return "hf" + strconv.FormatUint(h.Sum64(), 36)
}

func ipNet(addr netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}
}
