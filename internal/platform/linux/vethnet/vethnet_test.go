package vethnet_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/vethnet"
)

func config(t *testing.T, subnet string) vethnet.Config {
	t.Helper()
	return vethnet.Config{Bridge: "vethnettest", Subnet: netip.MustParsePrefix(subnet), Dir: filepath.Join(t.TempDir(), "book")}
}

func open(t *testing.T, c vethnet.Config) *vethnet.Net {
	t.Helper()
	n, err := vethnet.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestConfig(t *testing.T) {
	good := config(t, "10.1.0.0/16")
	for what, change := range map[string]func(*vethnet.Config){
		"no subnet":         func(c *vethnet.Config) { c.Subnet = netip.Prefix{} },
		"IPv6":              func(c *vethnet.Config) { c.Subnet = netip.MustParsePrefix("fd00::/64") },
		"a small one":       func(c *vethnet.Config) { c.Subnet = netip.MustParsePrefix("10.1.0.0/30") },
		"a large one":       func(c *vethnet.Config) { c.Subnet = netip.MustParsePrefix("10.0.0.0/7") },
		"no bridge":         func(c *vethnet.Config) { c.Bridge = "" },
		"a bridge too long": func(c *vethnet.Config) { c.Bridge = "sixteen-bytes-xx" },
		"no directory":      func(c *vethnet.Config) { c.Dir = "" },
		"no table":          func(c *vethnet.Config) { c.NAT = true },
	} {
		c := good
		change(&c)
		if _, err := vethnet.New(c); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	c := good
	c.Subnet = netip.MustParsePrefix("10.1.7.9/16")
	if got := open(t, c).Gateway(); got != netip.MustParseAddr("10.1.0.1") {
		t.Errorf("the gateway is %v", got)
	}
}

// Every address is reserved once, by any process, and none of the net's own addresses
// is.
func TestAddresses(t *testing.T) {
	c := config(t, "10.1.0.0/27")
	nets := []*vethnet.Net{open(t, c), open(t, c)} // as two processes
	var mu sync.Mutex
	var all sync.WaitGroup
	given := map[netip.Addr]string{}
	for i := range 29 {
		all.Go(func() {
			owner := fmt.Sprint("owner-", i)
			addr, err := nets[i%2].Reserve(owner)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if given[addr] != "" {
				t.Errorf("%v is reserved for %s and %s", addr, given[addr], owner)
			}
			given[addr] = owner
		})
	}
	all.Wait()
	for addr := range given {
		if last := addr.As4()[3]; !c.Subnet.Contains(addr) || last < 2 || last > 30 {
			t.Errorf("%v is reserved", addr)
		}
	}
	if _, err := nets[0].Reserve("late"); !errors.Is(err, vethnet.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	if owners, err := nets[1].Owners(); err != nil || len(owners) != 29 || fmt.Sprint(owners) != fmt.Sprint(given) {
		t.Errorf("%v, %v, wanted %v", owners, err, given)
	}
	some := netip.MustParseAddr("10.1.0.7")
	for _, owner := range []string{"another owner", given[some], given[some]} {
		if err := nets[0].Release(owner, some); err != nil {
			t.Error(err)
		}
	}
	if addr, err := nets[1].Reserve("late"); err != nil || addr != some {
		t.Errorf("%v, %v: only %v is free", addr, err, some)
	}
	for _, owner := range []string{"", "two\nlines", string(make([]byte, 200))} {
		if _, err := nets[0].Reserve(owner); err == nil {
			t.Errorf("%q is an owner", owner)
		}
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil || len(entries) != 29 {
		t.Errorf("%v, %v", entries, err)
	}
}

// inNamespace runs the rest of the test in a network namespace of its own. The
// thread ends with the test.
func inNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 && testing.Short() {
		t.Skip("-short without root: network namespaces need root")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

// sleeper is a process in its own network namespace.
func sleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "inf")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

func TestAttach(t *testing.T) {
	inNamespace(t)
	c := config(t, "10.1.0.0/24")
	n := open(t, c)
	pid := sleeper(t)
	addr, err := n.Reserve("one")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Attach(pid, "one", addr); err != nil {
		t.Fatal(err)
	}
	inside := look(t, pid)
	if !slices.Contains(inside, fmt.Sprintf("%v/24 eth0", addr)) || !slices.Contains(inside, "default via 10.1.0.1") {
		t.Errorf("inside: %q", inside)
	}
	if outside := ports(t, c.Bridge); len(outside) != 1 || !outside[0].Isolated {
		t.Errorf("the bridge's ports: %+v", outside)
	}
	if err := n.Attach(pid, "one", addr); err == nil {
		t.Error("a namespace is connected twice")
	}
	if err := n.Attach(1<<30, "no such process", addr); err == nil {
		t.Error("no namespace is connected")
	}

	// A bridge that another program has removed is made again.
	if err := n.Remove(nil); !errors.Is(err, vethnet.ErrInUse) {
		t.Errorf("a bridge in use: %v", err)
	}
	bridge, err := netlink.LinkByName(c.Bridge)
	if err == nil {
		err = netlink.LinkDel(bridge)
	}
	if err != nil {
		t.Fatal(err)
	}
	other := sleeper(t)
	if err := n.Attach(other, "other", netip.MustParseAddr("10.1.0.99")); err != nil {
		t.Fatal(err)
	}
	if got := ports(t, c.Bridge); len(got) != 1 {
		t.Errorf("the new bridge's ports: %+v", got)
	}
	for range 2 { // the second time the bridge is gone
		if err := n.Detach("other"); err != nil {
			t.Error(err)
		}
		if err := n.Remove(nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := net.InterfaceByName(c.Bridge); err == nil {
		t.Error("the bridge stays")
	}
}

// The bridge keeps its hardware address when ports change, because namespaces have it
// in their ARP tables.
func TestHardwareAddressStays(t *testing.T) {
	inNamespace(t)
	c := config(t, "10.1.0.0/24")
	n := open(t, c)
	seen := map[string]bool{}
	look := func() {
		bridge, err := netlink.LinkByName(c.Bridge)
		if err != nil {
			t.Fatal(err)
		}
		seen[bridge.Attrs().HardwareAddr.String()] = true
	}
	for i := range 8 {
		if err := n.Attach(sleeper(t), fmt.Sprint("owner-", i), netip.AddrFrom4([4]byte{10, 1, 0, byte(10 + i)})); err != nil {
			t.Fatal(err)
		}
		look()
	}
	for i := range 7 {
		if err := n.Detach(fmt.Sprint("owner-", i)); err != nil {
			t.Fatal(err)
		}
		look()
	}
	if len(seen) != 1 {
		t.Errorf("it had %v", seen)
	}
}

// An address that is given to the next namespace is reachable at once, although the host
// remembers the one before.
func TestAddressIsGivenAgain(t *testing.T) {
	inNamespace(t)
	n := open(t, config(t, "10.1.0.0/24"))
	addr := netip.MustParseAddr("10.1.0.9")
	for i := range 4 {
		owner := fmt.Sprint("owner-", i)
		if err := n.Attach(sleeper(t), owner, addr); err != nil {
			t.Fatal(err)
		}
		// The namespace refuses the connection. To a wrong device it gets no answer, and the
		// kernel looks for the right one after 8 seconds at the earliest (neighbour table,
		// delay_first_probe_time and ucast_solicit, arp(7)).
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, 80).String(), 6*time.Second)
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("namespace %d: %v, %v", i, c, err)
		}
		if err := n.Detach(owner); err != nil {
			t.Fatal(err)
		}
	}
}

// look lists a process's addresses and default route.
func look(t *testing.T, pid int) []string {
	t.Helper()
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName(vethnet.Inside)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	addrs, err := h.AddrList(link, unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		all = append(all, a.IPNet.String()+" "+vethnet.Inside)
	}
	routes, err := h.RouteList(link, unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Gw != nil {
			all = append(all, "default via "+r.Gw.String())
		}
	}
	return all
}

// ports returns the ports of a bridge in this thread's namespace.
func ports(t *testing.T, bridge string) []netlink.Protinfo {
	t.Helper()
	at, err := netlink.LinkByName(bridge)
	if err != nil {
		t.Fatal(err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var out []netlink.Protinfo
	for _, l := range links {
		if l.Attrs().MasterIndex == at.Attrs().Index {
			info, err := netlink.LinkGetProtinfo(l)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, info)
		}
	}
	return out
}
