package protecttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nlenc"
	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
)

// Kernel has the kernel state that a hold might leave: nftables tables, netfilter
// queues, links, queueing disciplines and the setting of migration of this network
// namespace, and Holdfast's BPF programs and maps of the whole host.
type Kernel struct {
	local []string
	bpf   map[string]bool
}

// Look reads the current state.
func Look(t testing.TB) Kernel {
	t.Helper()
	k, err := look()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func look() (Kernel, error) {
	tables, err := nftTables()
	if err != nil {
		return Kernel{}, fmt.Errorf("list nftables: %w", err)
	}
	k := Kernel{local: tables, bpf: make(map[string]bool)}
	links, err := nl.LinkList()
	if err != nil {
		return Kernel{}, err
	}
	for _, l := range links {
		k.local = append(k.local, "link "+l.Attrs().Name)
		qs, err := nl.QdiscList(l)
		if err != nil {
			return Kernel{}, err
		}
		for _, q := range qs {
			k.local = append(k.local, "qdisc "+q.Type()+" of "+l.Attrs().Name)
		}
	}
	for _, f := range []string{"/proc/net/netfilter/nfnetlink_queue", "/proc/sys/net/ipv4/tcp_migrate_req"} {
		b, err := kfile.Read(f, 1<<20)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return Kernel{}, err
		}
		if f != "/proc/net/netfilter/nfnetlink_queue" || len(b) > 0 {
			k.local = append(k.local, f+": "+strings.TrimSpace(string(b)))
		}
	}
	slices.Sort(k.local)
	return k, ours(k.bpf)
}

// ours adds the names and ids of BPF objects that a hold creates.
func ours(found map[string]bool) error {
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has just gone
		}
		if info, err := p.Info(); err == nil && strings.HasPrefix(info.Name, "hf_") {
			found[fmt.Sprintf("BPF program %d %s", id, info.Name)] = true
		}
		p.Close()
	}
}

// nftTables lists the tables of all families.
func nftTables() ([]string, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	msgs, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: 10<<8 | 1, Flags: netlink.Request | netlink.Dump}, // NFT_MSG_GETTABLE
		Data:   []byte{unix.AF_UNSPEC, 0, 0, 0},
	})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range msgs {
		d, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return nil, err
		}
		d.ByteOrder = binary.BigEndian
		for d.Next() {
			if d.Type() == 1 { // NFTA_TABLE_NAME
				names = append(names, "table "+nlenc.String(d.Bytes()))
			}
		}
	}
	return names, nil
}

// NothingLeft waits until the kernel's state is the same as before, and fails after a
// time limit. Other holds create BPF programs at the same time, so it also waits for the
// end of each new program.
func NothingLeft(t testing.TB, before Kernel) {
	t.Helper()
	var fresh map[string]bool
	for end := time.Now().Add(Patience); ; time.Sleep(5 * time.Millisecond) {
		now := Look(t)
		if fresh == nil {
			fresh = maps.Clone(now.bpf)
			maps.DeleteFunc(fresh, func(k string, _ bool) bool { return before.bpf[k] })
		}
		maps.DeleteFunc(fresh, func(k string, _ bool) bool { return !now.bpf[k] })
		if len(fresh) == 0 && slices.Equal(now.local, before.local) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left behind: %v\nnow: %q\nbefore: %q", slices.Sorted(maps.Keys(fresh)), now.local, before.local)
		}
	}
}

// NoReuseport fails if a listener on the port of one of the addresses has
// SO_REUSEPORT, which no server of these tests sets. For a Multipath TCP listener the
// kernel does not report it, because the inner socket has it.
func NoReuseport(t testing.TB, addresses ...string) {
	t.Helper()
	for _, a := range Addresses(t, addresses...) {
		for addr, has := range Reuseport(t, a.Port) {
			if has {
				t.Errorf("the listener on %v has SO_REUSEPORT, which is not its own", addr)
			}
		}
	}
}

// Reuseport returns, for each address with a listener on the port, whether the
// listener has SO_REUSEPORT.
func Reuseport(t testing.TB, port uint16) map[netip.AddrPort]bool {
	t.Helper()
	found := make(map[netip.AddrPort]bool)
	for _, l := range Listening(t, port) {
		open, err := pidfd.FindSockets(nil, l.Inode)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := pidfd.TakeSocket(open[l.Inode], l.Inode)
		if err != nil {
			t.Fatal(err)
		}
		v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		found[l.Addr] = v != 0
	}
	return found
}

// Listening returns the sockets that listen on a port.
func Listening(t testing.TB, port uint16) []sockdiag.Listener {
	t.Helper()
	d, err := sockdiag.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ls, err := d.Listeners(port)
	if err != nil {
		t.Fatal(err)
	}
	return ls
}
