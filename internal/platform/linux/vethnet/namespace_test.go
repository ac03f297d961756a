package vethnet_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/vethnet"
	"holdfast/test/poll"
)

// Each namespace has an address of its own, also beside another process's. Its file keeps
// it; afterwards nothing remains.
func TestNamespaces(t *testing.T) {
	inNamespace(t)
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	nets := []*vethnet.Net{open(t, config(t, "10.1.0.0/28")), open(t, config(t, "10.1.0.0/28"))} // as two processes
	var mu sync.Mutex
	var all sync.WaitGroup
	made := map[netip.Addr]*vethnet.Namespace{}
	for i := range 8 {
		all.Go(func() {
			if err := enter(home); err != nil {
				t.Error(err)
				return
			}
			ns, err := nets[i%2].NewNamespace()
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if made[ns.Addr] != nil {
				t.Errorf("%v is given twice", ns.Addr)
			}
			made[ns.Addr] = ns
		})
	}
	all.Wait()
	addresses := func() []netip.Addr {
		list, err := nets[0].Addresses()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := addresses(); len(got) != 8 || len(made) != 8 {
		t.Errorf("%v, %v", got, made)
	}
	for _, p := range ports(t, "vethnettest") {
		if !p.Isolated {
			t.Error("a port is not isolated")
		}
	}
	var one *vethnet.Namespace
	for addr, ns := range made {
		one = ns
		inside(t, ns.File, addr.String()+"/28 eth0", "127.0.0.1/8 lo")
	}
	// A device is removed by its index only, because the address may be another's by now.
	if err := nets[1].Disconnect(one.Addr, one.Index+1000); err != nil || len(addresses()) != 8 {
		t.Errorf("%v: %v", addresses(), err)
	}
	for range 2 {
		if err := nets[1].Disconnect(one.Addr, one.Index); err != nil || slices.Contains(addresses(), one.Addr) {
			t.Errorf("%v: %v", addresses(), err)
		}
	}
	if err := nets[0].Remove(nil); !errors.Is(err, vethnet.ErrInUse) {
		t.Errorf("a bridge in use: %v", err)
	}
	for _, ns := range made {
		ns.File.Close()
	}
	poll.Until(t, "the kernel has removed the devices", func() bool { return len(addresses()) == 0 })
	if err := nets[0].Remove(nil); err != nil {
		t.Error(err)
	}
	if _, err := net.InterfaceByName("vethnettest"); err == nil {
		t.Error("the bridge stays")
	}
}

// enter moves the thread to a namespace. It ends with its goroutine.
func enter(ns netns.NsHandle) error {
	runtime.LockOSThread()
	return netns.Set(ns)
}

// A net without a free address says so, and keeps nothing.
func TestNoAddressIsFree(t *testing.T) {
	inNamespace(t)
	n := open(t, config(t, "10.1.0.0/29")) // five addresses
	var made []*os.File
	var err error
	for range 6 {
		var ns *vethnet.Namespace
		if ns, err = n.NewNamespace(); err == nil {
			made = append(made, ns.File)
		}
	}
	if !errors.Is(err, vethnet.ErrFull) || len(made) != 5 {
		t.Errorf("%d of five addresses, %v", len(made), err)
	}
	for _, f := range made {
		f.Close()
	}
}

// inside checks the addresses of a namespace.
func inside(t *testing.T, file *os.File, want ...string) {
	t.Helper()
	h, err := netlink.NewHandleAt(netns.NsHandle(file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	list, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range list {
		link, err := h.LinkByIndex(a.LinkIndex)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, a.IPNet.String()+" "+link.Attrs().Name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("inside are %v, not %v", got, want)
	}
}
