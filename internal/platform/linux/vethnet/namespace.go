package vethnet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace that is connected to the bridge. Its processes keep
// it, and File does until it is closed.
type Namespace struct {
	Addr  netip.Addr
	File  *os.File // of nsfs
	Index int      // of the host's device
}

// maxTries is how many addresses NewNamespace tries. With one try in two on a taken
// address, as many fail once in 10¹⁹.
const maxTries = 64

// NewNamespace makes a network namespace with a random free address on the bridge, lo up,
// and the settings that Docker's containers have. No namespace has the address in parallel,
// whichever process makes it: the name of the host's device is the address. Nothing
// remains of a namespace that ends. ErrFull, ErrNoNAT.
func (n *Net) NewNamespace() (*Namespace, error) {
	if n.open && !n.hasBridge() { // a host without nftables gets no bridge either
		if _, err := n.nat.exists(); err != nil {
			return nil, fmt.Errorf("make a network namespace: %w", errors.Join(ErrNoNAT, err))
		}
	}
	n.making.Lock()
	defer n.making.Unlock()
	file, err := newNamespace()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	addr, err := n.connectNew(netns.NsHandle(file.Fd()))
	index := 0
	if err == nil {
		index, err = n.Index(addr)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect a network namespace to bridge %s: %w", n.bridge, err), file.Close())
	}
	return &Namespace{Addr: addr, File: file, Index: index}, nil
}

// Index returns the index of the host's device of an address; 0 if no namespace has it.
// The kernel gives no index twice.
func (n *Net) Index(addr netip.Addr) (int, error) {
	link, err := netlink.LinkByName(deviceOf(addr))
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find the device of %v: %w", addr, err)
	}
	return link.Attrs().Index, nil
}

// connectNew connects a new namespace to the bridge.
func (n *Net) connectNew(target netns.NsHandle) (netip.Addr, error) {
	if err := linkUp(target, "lo"); err != nil {
		return netip.Addr{}, err
	}
	size := uint32(1)<<(32-n.subnet.Bits()) - 3 // see Reserve
	for range maxTries {
		addr := n.nth(2 + rand.Uint32N(size))
		err := n.connect(target, deviceOf(addr), addr)
		if !errors.Is(err, os.ErrExist) {
			return addr, err
		}
	}
	return netip.Addr{}, fmt.Errorf("%v: %w", n.subnet, ErrFull)
}

// Disconnect removes the host's device of a namespace, and with it the one inside, if the
// address still has the device of that index. A device that is gone is no error.
func (n *Net) Disconnect(addr netip.Addr, index int) error {
	now, err := n.Index(addr)
	if err != nil || now != index || index == 0 {
		return err
	}
	// By index: the name may have become another namespace's.
	err = netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove the device of %v: %w", addr, err)
	}
	return nil
}

// deviceOf is the name of the host's device of an address: at most 15 bytes, and none of
// those of hostDevice.
func deviceOf(addr netip.Addr) string {
	b := addr.As4()
	return fmt.Sprintf("hf-%02x%02x%02x%02x", b[0], b[1], b[2], b[3])
}

// newNamespace makes a namespace. Its file keeps it.
func newNamespace() (file *os.File, err error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer func() {
		if e := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); e != nil {
			err = errors.Join(err, e) // the thread stays locked, and ends with its goroutine
			return
		}
		runtime.UnlockOSThread()
	}()
	// /proc/sys/net shows the namespace of the calling thread.
	for name, value := range map[string]string{
		// The settings of a container with a network of Docker's (moby 20.10 and later,
		// daemon/oci_linux.go): programs without privileges bind all ports, and send pings.
		"ipv4/ip_unprivileged_port_start": "0",
		"ipv4/ping_group_range":           "0 2147483647",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			return nil, err
		}
	}
	// The bridge has no IPv6. A kernel without it has no such file.
	for _, devices := range []string{"default", allDevices} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+devices+"/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return os.Open("/proc/thread-self/ns/net")
}

// linkUp brings a device of a namespace up.
func linkUp(target netns.NsHandle, name string) error {
	inside, err := netlink.NewHandleAt(target, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in the namespace: %w", err)
	}
	defer inside.Close()
	link, err := inside.LinkByName(name)
	if err == nil {
		err = inside.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// Addresses returns the addresses of the namespaces of NewNamespace that exist, of all
// processes.
func (n *Net) Addresses() ([]netip.Addr, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var out []netip.Addr
	for _, l := range links {
		var b [4]byte
		name := l.Attrs().Name
		if !strings.HasPrefix(name, "hf-") {
			continue
		}
		if _, err := fmt.Sscanf(name, "hf-%02x%02x%02x%02x", &b[0], &b[1], &b[2], &b[3]); err == nil && n.subnet.Contains(netip.AddrFrom4(b)) {
			out = append(out, netip.AddrFrom4(b))
		}
	}
	return out, nil
}
