// Package vethnet connects network namespaces to a bridge of this host, each by
// a pair of veth devices (veth(4)) and with an IPv4 address of its own.
//
// Which address is whose is kept in a directory, one file for each: so whoever
// comes next, after a crash too, gives none out twice and can take back those of
// owners that are gone. The devices need no such book: the kernel removes a pair
// with the namespace that holds one end.
//
// The ports of the bridge are isolated from each other (bridge(8), isolated):
// namespaces reach the host, and the host them, but not one another. With
// Config.Table they also reach what is beyond the host.
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
)

// Inside is the name of the device in a namespace.
const Inside = "eth0"

// Config describes a net.
type Config struct {
	// Bridge is the device's name, at most 15 bytes. It is made when it is
	// first needed, and stays until Remove.
	Bridge string
	// Subnet is IPv4, /8 to /29. Its first address is the bridge's.
	Subnet netip.Prefix
	// Dir keeps the addresses that are given out. It is made when it is first
	// needed.
	Dir string
	// Table is the nftables table (family ip) of the way out of this host.
	Table string
	// Out says that there is one, made with the bridge: packets of namespaces get
	// the host's address where they leave it, answers get in, and nothing else is
	// forwarded that was not before. Without it firewall and forwarding are left
	// alone, but for what an earlier Net with this Table has left: that is ended by
	// Tend and Remove.
	Out bool
}

// Net is a bridge with its addresses. Its methods may be called from any
// goroutine, and processes may share one.
type Net struct {
	bridge  string
	subnet  netip.Prefix
	gateway netip.Addr
	pool    pool
	open    bool // there is a way out
	out     wayOut

	mu    sync.Mutex // one at a time makes the bridge
	index int        // of the bridge, when it was last looked at
}

// New checks the configuration. It makes nothing yet.
func New(c Config) (*Net, error) {
	subnet := c.Subnet.Masked()
	switch {
	case !subnet.IsValid() || !subnet.Addr().Is4() || subnet.Bits() < 8 || subnet.Bits() > 29:
		return nil, fmt.Errorf("the subnet %v is no IPv4 net of /8 to /29", c.Subnet)
	case c.Bridge == "" || len(c.Bridge) >= unix.IFNAMSIZ:
		return nil, fmt.Errorf("the name of the bridge %q is not 1 to %d bytes long", c.Bridge, unix.IFNAMSIZ-1)
	case c.Dir == "":
		return nil, errors.New("addresses need a directory")
	case c.Table == "" && c.Out:
		return nil, errors.New("the way out needs the name of a table")
	}
	gateway := subnet.Addr().Next()
	return &Net{
		bridge: c.Bridge, subnet: subnet, gateway: gateway, pool: pool{dir: c.Dir, subnet: subnet, gateway: gateway}, open: c.Out,
		out: wayOut{table: c.Table, bridge: c.Bridge, subnet: subnet, tables: tables{comment: c.Table}},
	}, nil
}

// Gateway is the bridge's address.
func (n *Net) Gateway() netip.Addr { return n.gateway }

// Reserve gives an address to an owner, a word of at most 128 bytes without line
// breaks, and keeps it for him until Release. An owner asks once.
func (n *Net) Reserve(owner string) (netip.Addr, error) { return n.pool.reserve(owner) }

// Release takes an address back, if it is still that owner's.
func (n *Net) Release(owner string, addr netip.Addr) error { return n.pool.release(owner, addr) }

// Owners are all that have addresses.
func (n *Net) Owners() (map[netip.Addr]string, error) { return n.pool.owners() }

// ErrNoWayOut says that the way out of this host cannot be made, and nothing else.
var ErrNoWayOut = errors.New("there is no way out of this host")

// Attach connects the network namespace of the process pid to the bridge: its
// device Inside has the address and leads to the world by way of the bridge. A
// namespace that has such a device already is an error. ErrNoWayOut.
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
	unlock, err := n.lock(unix.LOCK_SH) // nobody removes the bridge meanwhile
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.plug(target, outside(owner)); err != nil {
		return err
	}
	if n.open {
		if err := n.out.ensure(false); err != nil {
			return errors.Join(ErrNoWayOut, err, n.Detach(owner))
		}
	}
	return n.setUp(target, addr)
}

// lock locks the book's directory, between processes too. With LOCK_NB it does
// not wait (unix.EWOULDBLOCK).
func (n *Net) lock(how int) (unlock func(), err error) {
	if how&unix.LOCK_EX == 0 { // who takes the net away makes nothing
		if err := os.MkdirAll(n.pool.dir, 0o700); err != nil {
			return nil, fmt.Errorf("lock the net: %w", err)
		}
	}
	f, err := os.Open(n.pool.dir)
	if err != nil {
		return nil, fmt.Errorf("lock the net: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the net: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// Tend puts right what others have changed of the way out since it was made: who
// has flushed the firewall, say, or started a Docker that drops what is not its
// own. It is for now and then; it does nothing where there is no bridge.
func (n *Net) Tend() error {
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
		return n.endOut()
	}
	return n.out.ensure(true)
}

// plug makes the pair of devices: one end on the bridge, the other in the
// namespace.
func (n *Net) plug(target netns.NsHandle, name string) error {
	add := func() error {
		index, err := n.bridgeIndex()
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex, attrs.Flags = name, index, net.FlagUp
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: Inside, PeerNamespace: netlink.NsFd(target)})
	}
	err := add()
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		n.forget() // somebody has removed the bridge
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

// Detach removes the host's device of an owner, and with it the one inside. One
// that is gone is no error.
func (n *Net) Detach(owner string) error {
	link, err := netlink.LinkByName(outside(owner))
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the device of %s: %w", owner, err)
	}
	return nil
}

// setUp gives the namespace its address and way out.
func (n *Net) setUp(target netns.NsHandle, addr netip.Addr) error {
	inside, err := netlink.NewHandleAt(target, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("reach into the namespace: %w", err)
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

// bridgeIndex returns the bridge, made where it is not there.
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
		return 0, fmt.Errorf("%s is no bridge but a %s", n.bridge, link.Type())
	}
	err = netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(n.gateway, n.subnet.Bits())})
	if err == nil {
		// Else it has the lowest of its ports' (br_stp_recalculate_bridge_id,
		// net/bridge/br_stp_if.c), and with each that comes or goes it may be another:
		// who has the old one in its table sends to nobody for half a minute.
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

func (n *Net) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.index = 0
	n.out.again()
}

// ErrInUse says that namespaces are connected to the bridge.
var ErrInUse = errors.New("it is in use")

// Remove deletes the bridge, and its way out of the host. One that is gone is no
// error. ErrInUse, and neither is changed, while a namespace is connected, or is
// being connected. gone, if it is not nil, is asked first for owners that have
// ended: their devices are removed, which the kernel does itself a while after the
// end of a namespace. Nobody is connected while it looks.
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
	case !errors.Is(err, fs.ErrNotExist): // else there are no addresses, and nobody is being connected
		return err
	}
	return n.removeLocked(gone)
}

func (n *Net) removeLocked(gone func() ([]string, error)) error {
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
	n.forget()
	bridge, err := netlink.LinkByName(n.bridge)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return n.endOut()
	}
	if err != nil {
		return err
	}
	links, err := whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			return ErrInUse
		}
	}
	// The bridge last: while it is there somebody comes back for the rest.
	if err := n.endOut(); err != nil {
		return err
	}
	return netlink.LinkDel(bridge)
}

// endOut undoes a way out, of an earlier process too.
func (n *Net) endOut() error {
	if n.out.table == "" {
		return nil
	}
	there, err := n.out.there()
	switch {
	case n.open && err != nil:
		return err
	case n.open || there:
		return n.out.remove()
	}
	return nil // there is none, or the kernel has no nftables
}

// outside is the name of the host's device of an owner. Names have 15 bytes.
func outside(owner string) string {
	h := fnv.New64a()
	h.Write([]byte(owner))
	return "hf" + strconv.FormatUint(h.Sum64(), 36)
}

func ipNet(addr netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}
}
