package probe

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/conntrack"
	"holdfast/internal/platform/linux/proc"
)

// The file fib_trie of a namespace with 10.88.0.2 on its network interface.
const trie = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.88.0.0/16 2 0 2
        +-- 10.88.0.0/30 2 0 2
           |-- 10.88.0.0
              /16 link UNICAST
           |-- %s
              /32 host LOCAL
        |-- 10.88.255.255
           /32 link BROADCAST
Local:
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.0
              /8 host LOCAL
`

// The user of a table is the container that has the address of most entries, or the process that has the port. An address
// of two namespaces, one outside the host and one without a majority name none.
func TestMostFlows(t *testing.T) {
	root := t.TempDir()
	write := func(pid int, file, text string) {
		t.Helper()
		file = filepath.Join(root, fmt.Sprint(pid), "net", file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tables := map[string]table{"net:[1]": {}} // the host's has no process
	for pid, addr := range map[int]string{100: "10.88.0.2", 200: "10.88.0.3", 300: "10.88.0.9", 400: "10.88.0.9"} {
		write(pid, "fib_trie", fmt.Sprintf(trie, addr))
		write(pid, "if_inet6", "00000000000000000000000000000001 01 80 10 80       lo\n")
		tables[fmt.Sprintf("net:[%d]", pid)] = table{subject: fact.Subject{Pid: pid, Cgroup: fmt.Sprintf("/docker/%d", pid)}}
	}
	write(200, "if_inet6", "20010db8000000000000000000000003 02 40 00 80     eth0\n")
	flows := func(n int, client, server string) (all []conntrack.Flow) {
		to := netip.MustParseAddrPort(server)
		for i := range n {
			all = append(all, conntrack.Flow{Protocol: unix.IPPROTO_UDP, Client: netip.AddrPortFrom(netip.MustParseAddr(client), uint16(1000+i)), Server: to})
		}
		return all
	}
	server := func(_ Host, end endpoint) (fact.Subject, bool) {
		return fact.Subject{Pid: 7, Command: "server"}, end.at.Port() == 53
	}
	for name, c := range map[string]struct {
		flows []conntrack.Flow
		want  fact.Subject
		share float64
	}{
		"from a container":              {append(flows(3, "10.88.0.2", "198.51.100.1:53"), flows(1, "10.88.0.3", "198.51.100.2:53")...), fact.Subject{Pid: 100, Cgroup: "/docker/100"}, 0.75},
		"to a container":                {append(flows(9, "198.51.100.1", "10.88.0.3:80"), flows(1, "10.88.0.2", "198.51.100.1:53")...), fact.Subject{Pid: 200, Cgroup: "/docker/200"}, 0.9},
		"from one container to another": {flows(4, "10.88.0.3", "10.88.0.2:80"), fact.Subject{Pid: 200, Cgroup: "/docker/200"}, 1},
		"IPv6":                          {flows(2, "2001:db8::3", "[2001:db8::9]:53"), fact.Subject{Pid: 200, Cgroup: "/docker/200"}, 1},
		"an address of two":             {flows(3, "10.88.0.9", "198.51.100.1:54"), fact.Subject{}, 0},
		"half":                          {append(flows(2, "10.88.0.2", "198.51.100.1:1"), flows(2, "10.88.0.3", "198.51.100.2:2")...), fact.Subject{}, 0},
		"to a port of the host":         {append(flows(3, "127.0.0.1", "127.0.0.1:53"), flows(1, "10.88.0.3", "198.51.100.2:1")...), fact.Subject{Pid: 7, Command: "server"}, 0.75},
		"to a port without owner":       {flows(3, "127.0.0.1", "127.0.0.1:54"), fact.Subject{}, 0},
		"a port of another host":        {flows(3, "198.51.100.7", "198.51.100.1:53"), fact.Subject{}, 0},
		"a broadcast address":           {flows(3, "10.88.255.255", "198.51.100.1:54"), fact.Subject{}, 0},
	} {
		got, share, ok := mostFlows(Host{Proc: proc.FS(root)}, c.flows, tables, server)
		if got.Pid != c.want.Pid || got.Cgroup != c.want.Cgroup || got.Command != c.want.Command || share != c.share || ok != (c.share > 0) {
			t.Errorf("%s: %+v, %v", name, got, share)
		}
	}
}

// Sockets of this process are found by their ports.
func TestSocketHolder(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	at := map[uint8]netip.AddrPort{unix.IPPROTO_TCP: netip.MustParseAddrPort(tcp.Addr().String()), unix.IPPROTO_UDP: netip.MustParseAddrPort(udp.LocalAddr().String())}
	for protocol, addr := range at {
		if s, ok := socketHolder(Host{Proc: proc.Host}, endpoint{protocol, addr}); !ok || s.Pid != os.Getpid() || s.Command == "" {
			t.Errorf("protocol %d: %+v", protocol, s)
		}
	}
	tcp.Close()
	if s, ok := socketHolder(Host{Proc: proc.Host}, endpoint{unix.IPPROTO_TCP, at[unix.IPPROTO_TCP]}); ok {
		t.Errorf("a closed port: %+v", s)
	}
}
