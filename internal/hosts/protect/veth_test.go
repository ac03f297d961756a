package protect_test

import (
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
	ours "holdfast/internal/platform/linux/netns"
	"holdfast/test/lab/labtest"
)

// Clients connect from another network namespace, over a pair of interfaces, while the
// server is killed and started.
func TestRemoteClients(t *testing.T) {
	needsRoot(t)
	const address = "10.99.0.1:18080"
	far := neighbour(t)
	dial := func(network, address string) (c net.Conn, err error) {
		err = ours.Do(far, func() error {
			c, err = net.DialTimeout(network, address, protecttest.Patience)
			return err
		})
		return c, err
	}
	for _, b := range both {
		t.Run(string(b), func(t *testing.T) {
			argv := protecttest.GoServer(address)
			pidfile := protecttest.StartFile(t, 0, argv...)
			protecttest.AwaitListening(t, address)
			before := protecttest.Look(t)
			load := protecttest.StartLoad(t, address, 5*time.Millisecond, dial)
			for range labtest.Count(2, 5) {
				r, err := protect.Run(t.Context(), options(t, b, protecttest.Restart(pidfile, 0, 30*time.Millisecond, argv...), address))
				if err != nil || r.Released.Stats.Held == 0 {
					t.Errorf("report: %+v, %v", r, err)
				}
			}
			noneFailed(t, load)
			protecttest.NothingLeft(t, before)
		})
	}
}

// neighbour creates a network namespace and a pair of interfaces to it. The local one has
// the address 10.99.0.1, the other one 10.99.0.2. It returns the path of the namespace.
func neighbour(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", roleNeighbour, "x")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	pair := &nl.Veth{LinkAttrs: nl.NewLinkAttrs(), PeerName: "hf-far"}
	pair.Name = "hf-near"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(nl.LinkAdd(pair))
	t.Cleanup(func() { _ = nl.LinkDel(pair) }) // it may have gone with the namespace
	peer, err := nl.LinkByName("hf-far")
	must(err)
	must(nl.LinkSetNsPid(peer, cmd.Process.Pid))
	must(nl.AddrAdd(pair, &nl.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 99, 0, 1), Mask: net.CIDRMask(24, 32)}}))
	must(nl.LinkSetUp(pair))
	ns, err := netns.GetFromPid(cmd.Process.Pid)
	must(err)
	defer ns.Close()
	h, err := nl.NewHandleAt(ns)
	must(err)
	defer h.Close()
	peer, err = h.LinkByName("hf-far")
	must(err)
	must(h.AddrAdd(peer, &nl.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 99, 0, 2), Mask: net.CIDRMask(24, 32)}}))
	must(h.LinkSetUp(peer))
	return ours.OfProcess(cmd.Process.Pid)
}

// neighbourMain keeps its network namespace alive until its input ends.
func neighbourMain() int {
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}
