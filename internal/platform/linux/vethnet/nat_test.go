package vethnet_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	vishnet "github.com/vishvananda/netlink"

	"holdfast/internal/platform/linux/netns"
	"holdfast/internal/platform/linux/vethnet"
)

const table = "vethnettest-out"

// place is a network namespace, identified by a process in it.
type place struct {
	t   *testing.T
	pid int
}

// in runs f in the namespace.
func (p place) in(f func() error) {
	p.t.Helper()
	if err := netns.Do(netns.OfProcess(p.pid), f); err != nil {
		p.t.Fatal(err)
	}
}

// serve answers each connection to a port with the address that it came from.
func (p place) serve(port int) {
	p.t.Helper()
	p.in(func() error {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		p.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				fmt.Fprint(c, host)
				c.Close()
			}
		}()
		return nil
	})
}

// asked checks the answer of a server to a client in the namespace; "" means that the
// server is unreachable.
func (p place) asked(what, address, want string) {
	p.t.Helper()
	limit := 300 * time.Millisecond
	if want != "" {
		limit = time.Minute
	}
	var answer string
	p.in(func() error {
		c, err := net.DialTimeout("tcp4", address, limit)
		if err != nil {
			return nil
		}
		defer c.Close()
		b := make([]byte, 64)
		n, _ := c.Read(b)
		answer = string(b[:n])
		return nil
	})
	if answer != want {
		p.t.Errorf("%s: %s is asked by %q, wanted %q", what, address, answer, want)
	}
}

// route adds a route in the namespace.
func (p place) route(to, via string) {
	p.t.Helper()
	p.in(func() error {
		dst, err := vishnet.ParseIPNet(to)
		if err != nil {
			return err
		}
		return vishnet.RouteAdd(&vishnet.Route{Dst: dst, Gw: net.ParseIP(via)})
	})
}

// beyond is another network behind a device of this host. This host is .1 in it; the
// machine .2 has no route back.
func beyond(t *testing.T, name, net24, bridge string) place {
	t.Helper()
	p := place{t, sleeper(t)}
	attrs := vishnet.NewLinkAttrs()
	attrs.Name = name
	if bridge != "" {
		at, err := vishnet.LinkByName(bridge)
		if err != nil {
			t.Fatal(err)
		}
		attrs.MasterIndex = at.Attrs().Index
	}
	if err := vishnet.LinkAdd(&vishnet.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: vishnet.NsPid(p.pid)}); err != nil {
		t.Fatal(err)
	}
	address(t, name, net24+".1/24")
	p.in(func() error { return addressOf("eth0", net24+".2/24") })
	return p
}

func address(t *testing.T, device, address string) {
	t.Helper()
	if err := addressOf(device, address); err != nil {
		t.Fatal(err)
	}
}

func addressOf(device, address string) error {
	link, err := vishnet.LinkByName(device)
	if err != nil {
		return err
	}
	addr, err := vishnet.ParseAddr(address)
	if err != nil {
		return err
	}
	if link.Attrs().MasterIndex == 0 {
		err = vishnet.AddrAdd(link, addr)
	}
	return errors.Join(err, vishnet.LinkSetUp(link))
}

// router sets forwarding for all devices, which a new namespace copies from the host.
func router(t *testing.T, to string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(to), 0); err != nil {
		t.Fatal(err)
	}
}

// hostState is the part of a host's state that NAT may change.
func hostState(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, command := range []string{"iptables-nft-save", "iptables-legacy-save"} {
		text, err := exec.Command(command).Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ":") {
				out = append(out, command+" "+strings.TrimSpace(line))
			}
		}
	}
	files, err := filepath.Glob("/proc/sys/net/ipv4/conf/*/forwarding")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f+" "+strings.TrimSpace(string(text)))
	}
	return append(out, tableNames(t)...)
}

// tableNames returns the nftables tables that are not those of iptables.
func tableNames(t *testing.T) []string {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, found := range list {
		if found.Name != "filter" && found.Name != "nat" {
			names = append(names, "table "+found.Name)
		}
	}
	return names
}

func deleteTable(t *testing.T, name string) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// ownRule returns the number of the first rule in the chain FORWARD with that comment.
func ownRule(t *testing.T, comment string) int {
	t.Helper()
	out, err := exec.Command("iptables-nft", "-S", "FORWARD").Output()
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(out), "\n") { // the first line is the policy
		if strings.Contains(line, comment) {
			return i
		}
	}
	t.Fatalf("no rule has the comment %s:\n%s", comment, out)
	return 0
}

func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// attached is a namespace on the net.
func attached(t *testing.T, n *vethnet.Net, owner string) (place, netip.Addr) {
	t.Helper()
	addr, err := n.Reserve(owner)
	if err != nil {
		t.Fatal(err)
	}
	p := place{t, sleeper(t)}
	if err := n.Attach(p.pid, owner, addr); err != nil {
		t.Fatal(err)
	}
	p.serve(7000)
	return p, addr
}

// removed waits until the net's namespaces are gone and it can be removed.
func removed(t *testing.T, n *vethnet.Net, owners ...string) {
	t.Helper()
	if err := n.Remove(func() ([]string, error) { return owners, nil }); err != nil {
		t.Fatal(err)
	}
}

// A namespace reaches other networks with the host's address. Connections from
// outside, between namespaces and through the host are refused. After Remove nothing
// is left.
func TestNAT(t *testing.T) {
	inNamespace(t)
	router(t, "0")
	near, far := beyond(t, "near0", "192.0.2", ""), beyond(t, "far0", "198.51.100", "")
	near.serve(7000)
	far.serve(7000)
	near.route("198.51.100.0/24", "192.0.2.1")
	far.route("192.0.2.0/24", "198.51.100.1")
	near.route("10.1.0.0/24", "192.0.2.1")
	before := hostState(t)

	c := config(t, "10.1.0.0/24")
	c.Table, c.NAT = table, true
	n := open(t, c)
	a, _ := attached(t, n, "a")
	b, addrOfB := attached(t, n, "b")
	a.route(addrOfB.String()+"/32", "10.1.0.1")
	good := func(when string) {
		t.Helper()
		a.asked(when, "192.0.2.2:7000", "192.0.2.1")
		a.asked(when, "198.51.100.2:7000", "198.51.100.1")
		a.asked(when+", by way of the host", addrOfB.String()+":7000", "")
		near.asked(when+", from the world", addrOfB.String()+":7000", "")
		near.asked(when+", through the host", "198.51.100.2:7000", "")
	}
	good("at first")
	b.asked("the other", "192.0.2.2:7000", "192.0.2.1")

	// As Docker and other programs do at their start.
	run(t, "iptables-nft", "-P", "FORWARD", "DROP")
	run(t, "iptables-nft", "-A", "FORWARD", "-s", "203.0.113.0/24", "-j", "REJECT")
	a.asked("under iptables that drop", "192.0.2.2:7000", "")
	for range 2 { // the second time everything exists
		if err := n.Tend(false); err != nil {
			t.Fatal(err)
		}
	}
	good("beside Docker")
	// Not t.Run: its goroutine would be outside the namespace.
	path := os.Getenv("PATH")
	t.Setenv("PATH", t.TempDir())
	if err := n.Tend(false); err != nil {
		t.Errorf("with all rules no program is needed: %v", err)
	}
	t.Setenv("PATH", path)
	run(t, "iptables-nft", "-D", "FORWARD", strconv.Itoa(ownRule(t, table)))
	t.Setenv("PATH", t.TempDir())
	if err := n.Tend(false); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("with a missing rule one is needed: %v", err)
	}
	t.Setenv("PATH", path)
	if err := n.Tend(false); err != nil {
		t.Fatal(err)
	}
	good("after a rule was removed")
	deleteTable(t, table)
	if err := n.Tend(false); err != nil {
		t.Fatal(err)
	}
	good("after the firewall was flushed")

	// After a crash another process takes the net over, and removes it.
	n = open(t, c)
	if _, err := n.Owners(); err != nil {
		t.Error(err)
	}
	if err := n.Remove(nil); !errors.Is(err, vethnet.ErrInUse) {
		t.Errorf("while it is in use: %v", err)
	}
	if err := n.Tend(true); err != nil {
		t.Error(err)
	}
	good("after a crash")
	removed(t, open(t, c), "a", "b")
	before = append([]string{"iptables-nft-save *filter", "iptables-nft-save -A FORWARD -s 203.0.113.0/24 -j REJECT --reject-with icmp-port-unreachable", "iptables-nft-save COMMIT"}, before...)
	if diff := cmp.Diff(before, hostState(t)); diff != "" {
		t.Errorf("before and after:\n%s", diff)
	}
}

// A host that is a router stays one. Other containers are reachable only by their
// published ports.
func TestNATOnARouter(t *testing.T) {
	inNamespace(t)
	near := beyond(t, "near0", "192.0.2", "")
	near.serve(7000)
	attrs := vishnet.NewLinkAttrs()
	attrs.Name = "others0"
	if err := vishnet.LinkAdd(&vishnet.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	address(t, "others0", "172.30.0.1/24")
	other := beyond(t, "other1", "172.30.0", "others0")
	other.route("0.0.0.0/0", "172.30.0.1")
	other.serve(7000)
	other.serve(7001)
	run(t, "iptables-nft", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "-d", "192.0.2.1", "--dport", "80", "-j", "DNAT", "--to-destination", "172.30.0.2:7001")
	router(t, "1")
	before := hostState(t)

	c := config(t, "10.1.0.0/24")
	c.Table, c.NAT = table, true
	n := open(t, c)
	a, addr := attached(t, n, "a")
	a.asked("the world", "192.0.2.2:7000", "192.0.2.1")
	a.asked("another's container", "172.30.0.2:7000", "")
	a.asked("its published port", "192.0.2.1:80", "172.30.0.1")
	other.asked("ours from there", addr.String()+":7000", "")
	near.asked("the published port from the world", "192.0.2.1:80", "192.0.2.2")
	removed(t, n, "a")
	if diff := cmp.Diff(before, hostState(t)); diff != "" {
		t.Errorf("before and after:\n%s", diff)
	}
}

// A host that becomes a router later keeps its forwarding setting.
func TestRouterLater(t *testing.T) {
	inNamespace(t)
	router(t, "0")
	near, far := beyond(t, "near0", "192.0.2", ""), beyond(t, "far0", "198.51.100", "")
	near.route("198.51.100.0/24", "192.0.2.1")
	far.route("192.0.2.0/24", "198.51.100.1")
	far.serve(7000)
	c := config(t, "10.1.0.0/24")
	c.Table, c.NAT = table, true
	n := open(t, c)
	attached(t, n, "a")
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); err != nil || string(text) != "0\n" {
		t.Errorf("the switch for all is %q, %v", text, err)
	}
	router(t, "1")
	if err := n.Tend(true); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"meanwhile", "after the end"} {
		near.asked(when, "198.51.100.2:7000", "192.0.2.2")
		if when == "meanwhile" {
			removed(t, n, "a")
		}
	}
	if names := tableNames(t); len(names) != 0 {
		t.Errorf("tables are left: %v", names)
	}
}

// Without NAT the firewall is left alone, and the NAT rules of an earlier process are
// removed.
func TestWithoutNAT(t *testing.T) {
	inNamespace(t)
	router(t, "0")
	near := beyond(t, "near0", "192.0.2", "")
	near.serve(7000)
	before := hostState(t)
	c := config(t, "10.1.0.0/24")
	c.Table, c.NAT = table, true
	a, _ := attached(t, open(t, c), "a")
	a.asked("the one before", "192.0.2.2:7000", "192.0.2.1")
	c.NAT = false
	n := open(t, c)
	if err := n.Tend(true); err != nil {
		t.Error(err)
	}
	a.asked("without NAT", "192.0.2.2:7000", "")
	b, _ := attached(t, n, "b")
	b.asked("without NAT", "192.0.2.2:7000", "")
	removed(t, n, "a", "b")
	if diff := cmp.Diff(before, hostState(t)); diff != "" {
		t.Errorf("before and after:\n%s", diff)
	}
}
