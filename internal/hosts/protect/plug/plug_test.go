package plug_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/install"
	"holdfast/internal/hosts/protect/plug"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
	"holdfast/test/vm"
	"holdfast/test/vm/vmtest"
)

// Roles of the test binary beside those of protecttest.
const (
	roleKeeper = "keeper"
	roleHolder = "holder"
)

// The tests run in a virtual machine: few kernels have the qdisc, and all tests share lo.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == plug.RoleWatcher {
		os.Exit(plug.Watch())
	}
	if len(os.Args) > 2 {
		args := os.Args[2:]
		switch os.Args[1] {
		case protecttest.RoleServer:
			os.Exit(protecttest.ServerMain(args))
		case protecttest.RoleRestart:
			os.Exit(protecttest.RestartMain(args))
		case roleKeeper:
			os.Exit(protect.Main(args, []protect.Backend{plug.New()}, slog.Default()))
		case roleHolder:
			os.Exit(holderMain(args[0]))
		}
	}
	os.Exit(vmtest.Main(m, vm.Config{
		// The tests and the keeper list sockets with tcp_diag. The check for
		// residue needs nf_tables, too.
		Modules: []string{"sch_prio", "sch_plug", "cls_flower", "tcp_diag", "mptcp_diag", "nf_tables", "dummy"},
	}))
}

// holderMain is a process that holds an address until it is killed.
func holderMain(address string) int {
	err := func() error {
		a, err := protect.ParseAddress(address)
		if err != nil {
			return err
		}
		s, err := protect.NewSockets([]protect.Address{a})
		if err != nil {
			return err
		}
		if _, err := plug.New().Hold(context.Background(), s.Target(protect.Spec{Addresses: []protect.Address{a}})); err != nil {
			return err
		}
		fmt.Println("held")
		select {}
	}()
	fmt.Println(err)
	return 1
}

// The suite does not check the order: all are released at once, and an answer that is lost
// or late then puts one behind others.
func TestConformance(t *testing.T) { protecttest.Run(t, plug.New(), true) }

// held starts a server, a process that holds its port, and clients that wait.
func held(t *testing.T) (address string, holder *exec.Cmd, clients *protecttest.Crowd) {
	t.Helper()
	address = serving(t)
	holder = exec.Command("/proc/self/exe", roleHolder, address)
	out, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill() // it may be dead
		_ = holder.Wait()
	})
	b := make([]byte, 256)
	if n, err := out.Read(b); err != nil || string(b[:n]) != "held\n" {
		t.Fatalf("the holder says %q, %v", b[:n], err)
	}
	clients = &protecttest.Crowd{}
	clients.Come(address, 30)
	poll.Until(t, "all clients wait", func() bool { return queued(t) == 30 })
	return address, holder, clients
}

// queued returns the number of packets in the plug.
func queued(t *testing.T) int {
	t.Helper()
	for _, q := range qdiscs(t) {
		if q.Type() == "plug" {
			return int(q.Attrs().Statistics.Queue.Qlen)
		}
	}
	return -1
}

func qdiscs(t *testing.T) []netlink.Qdisc {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	all, err := netlink.QdiscList(lo)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// awaitGone waits until neither a plug nor a watcher exists.
func awaitGone(t *testing.T) {
	t.Helper()
	poll.Until(t, "plug and watcher are gone", func() bool {
		all := qdiscs(t)
		return len(all) == 1 && all[0].Type() == "noqueue" && len(watchers(t)) == 0
	})
}

func watchers(t *testing.T) []int {
	t.Helper()
	pids, err := proc.Host.Pids()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(pids, func(pid int) bool {
		argv, err := proc.Host.Cmdline(pid)
		return err != nil || len(argv) != 2 || argv[1] != plug.RoleWatcher
	})
}

func signal(t *testing.T, s unix.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := unix.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
	}
}

// If the holder is killed, the watcher releases all packets.
func TestHolderKilled(t *testing.T) {
	_, holder, clients := held(t)
	signal(t, unix.SIGKILL, holder.Process.Pid)
	clients.Wait(t)
	awaitGone(t)
}

// If the watcher is killed, the holder releases all packets.
func TestWatcherKilled(t *testing.T) {
	_, _, clients := held(t)
	signal(t, unix.SIGKILL, watchers(t)...)
	clients.Wait(t)
	awaitGone(t)
}

// If both are killed, the process that tidies up releases all packets. The next hold and
// the next protect of any port do the same.
func TestBothKilled(t *testing.T) {
	for name, next := range map[string]func(protect.Target) error{
		"tidy": func(to protect.Target) error { return plug.New().Tidy(t.Context(), to, "lo") },
		"hold": func(to protect.Target) error {
			h, err := plug.New().Hold(t.Context(), to)
			if err != nil {
				return err
			}
			return h.Release(t.Context())
		},
		"protect of another port": protectOther(t),
	} {
		t.Run(name, func(t *testing.T) { testBothKilled(t, next) })
	}
}

// protectOther protects a server of its own with a backend that does not exist.
func protectOther(t *testing.T) func(protect.Target) error {
	other := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(other)...)
	protecttest.AwaitListening(t, other)
	spec := protect.Spec{Addresses: protecttest.Addresses(t, other), Backend: protect.Park, Limit: protecttest.Patience}
	return func(protect.Target) error {
		k, err := protect.StartKeeper(protect.KeeperOptions{Argv: []string{"/proc/self/exe", roleKeeper}, Log: slog.Default()})
		if err != nil {
			return err
		}
		defer k.Close()
		if _, err := k.Hold(t.Context(), spec); !errors.Is(err, protect.ErrNoBackend) {
			return fmt.Errorf("hold the other port: %w", err)
		}
		return nil
	}
}

func testBothKilled(t *testing.T, next func(protect.Target) error) {
	address, holder, clients := held(t)
	ws := watchers(t)
	if len(ws) != 1 {
		t.Fatalf("watchers %v", ws)
	}
	watcher, err := pidfd.Open(ws[0])
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	signal(t, unix.SIGSTOP, holder.Process.Pid)
	signal(t, unix.SIGKILL, ws...)
	signal(t, unix.SIGKILL, holder.Process.Pid)
	_ = holder.Wait()
	// A process that exits has the lock for a moment after its command line has gone.
	poll.Until(t, "the watcher has exited", watcher.Exited)
	if n := queued(t); n != 30 {
		t.Errorf("%d packets in the unmanaged plug", n)
	}
	if err := next(target(t, address)); err != nil {
		t.Fatal(err)
	}
	clients.Wait(t)
	awaitGone(t)
}

func target(t *testing.T, address string) protect.Target {
	t.Helper()
	as := protecttest.Addresses(t, address)
	s, err := protect.NewSockets(as)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.Target(protect.Spec{Addresses: as})
}

// Only one plug exists: a second hold is refused, and the first one continues.
func TestTaken(t *testing.T) {
	address, holder, clients := held(t)
	if _, err := plug.New().Hold(t.Context(), target(t, address)); !errors.Is(err, protect.ErrTaken) {
		t.Errorf("got %v", err)
	}
	if err := plug.New().Tidy(t.Context(), target(t, address), "lo"); err != nil {
		t.Error(err)
	}
	if n := queued(t); n != 30 { // neither has touched it
		t.Errorf("%d packets in the plug", n)
	}
	signal(t, unix.SIGKILL, holder.Process.Pid)
	clients.Wait(t)
	awaitGone(t)
}

// A prepared plug stays open between holds, of which each takes another port. It is gone when it is
// not wanted any more, after a hold in progress.
func TestPrepared(t *testing.T) {
	b := plug.New()
	if err := b.Prepare(true); err != nil {
		t.Fatal(err)
	}
	own := watchers(t)
	for range 3 {
		address := serving(t)
		clients := &protecttest.Crowd{}
		h, err := b.Hold(t.Context(), target(t, address))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Hold(t.Context(), target(t, address)); !errors.Is(err, protect.ErrTaken) {
			t.Errorf("a second hold: %v", err)
		}
		clients.Come(address, 10)
		poll.Until(t, "all clients wait", func() bool { return h.Stats().Waiting == 10 })
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
		clients.Wait(t)
		if n, now := queued(t), watchers(t); n != 0 || !slices.Equal(now, own) {
			t.Errorf("after a hold: %d packets, watchers %v, were %v", n, now, own)
		}
	}
	if _, err := plug.New().Hold(t.Context(), target(t, serving(t))); !errors.Is(err, protect.ErrTaken) {
		t.Errorf("a hold of another process: %v", err)
	}
	address := serving(t)
	h, err := b.Hold(t.Context(), target(t, address))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Prepare(false); err != nil {
		t.Fatal(err)
	}
	clients := &protecttest.Crowd{}
	clients.Come(address, 10)
	poll.Until(t, "all clients wait", func() bool { return h.Stats().Waiting == 10 })
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	clients.Wait(t)
	awaitGone(t)
}

// If the watcher of a prepared plug is killed, the plug goes, and the next hold makes another.
func TestPreparedWatcherKilled(t *testing.T) {
	b := plug.New()
	if err := b.Prepare(true); err != nil {
		t.Fatal(err)
	}
	for _, during := range []bool{false, true} {
		address := serving(t)
		if !during {
			signal(t, unix.SIGKILL, watchers(t)...)
			awaitGone(t)
		}
		h, err := b.Hold(t.Context(), target(t, address))
		if err != nil {
			t.Fatal(err)
		}
		clients := &protecttest.Crowd{}
		clients.Come(address, 10)
		poll.Until(t, "all clients wait", func() bool { return h.Stats().Waiting == 10 })
		if during {
			signal(t, unix.SIGKILL, watchers(t)...)
			clients.Wait(t)
		}
		if err := h.Release(t.Context()); (err != nil) != during {
			t.Errorf("released: %v", err)
		}
		clients.Wait(t)
	}
	if err := b.Prepare(false); err != nil {
		t.Error(err)
	}
	awaitGone(t)
}

// A port that is installed with this backend has an open plug on lo. A protect of it leaves the same
// plug. It is gone with the installation, and with a standing keeper that is killed.
func TestInstalled(t *testing.T) {
	o := install.Options{Keeper: []string{"/proc/self/exe", roleKeeper}, LockDir: t.TempDir(), Log: slog.Default()}
	address := protecttest.FreePort(t)
	argv := protecttest.GoServer(address)
	pidfile := protecttest.StartFile(t, 0, argv...)
	protecttest.AwaitListening(t, address)
	as := protecttest.Addresses(t, address)
	var ports []protect.Installed
	for _, a := range as {
		ports = append(ports, protect.Installed{Address: a, Backend: protect.Plug})
	}
	add := func() install.State {
		s, err := install.Add(t.Context(), o, ports)
		if err != nil || s.Ports[0].Works != protect.Plug {
			t.Fatalf("%+v, %v", s, err)
		}
		if n := queued(t); n != 0 {
			t.Errorf("%d packets in the installed plug", n)
		}
		return s
	}
	add()
	own := watchers(t)
	load := protecttest.StartLoad(t, address, 50*time.Millisecond, nil)
	for range 2 {
		seen := load.Total()
		poll.Until(t, "clients come", func() bool { return load.Total() > seen+10 })
		r, err := protect.Run(t.Context(), protect.Options{
			Spec: protect.Spec{Addresses: as, Limit: protecttest.Patience},
			Wait: time.Minute, Drain: protecttest.Patience, Command: protecttest.Restart(pidfile, 0, 200*time.Millisecond, argv...),
			Stdout: os.Stdout, Stderr: os.Stderr, Keeper: o.Keeper, LockDir: o.LockDir, Log: slog.Default(),
		})
		if err != nil || r.Backend != protect.Plug || r.ExitCode != 0 || r.Released.Stats.Held == 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if now := watchers(t); queued(t) < 0 || !slices.Equal(now, own) {
			t.Errorf("another plug: the watchers are %v, and were %v", now, own)
		}
	}
	_, failed, _ := load.Stop()
	for _, err := range failed {
		t.Error("a client:", err)
	}
	if _, err := install.Remove(t.Context(), o, nil); err != nil {
		t.Fatal(err)
	}
	awaitGone(t)
	signal(t, unix.SIGKILL, add().Keeper.Pid)
	awaitGone(t)
	if _, err := install.Remove(t.Context(), o, nil); err != nil {
		t.Error(err)
	}
}

// serving starts a server and returns its address.
func serving(t *testing.T) string {
	t.Helper()
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	return address
}

// A process of any user can bind an abstract socket address. It does not keep a hold from
// beginning. The lock leaves no file.
func TestNameOfAUser(t *testing.T) {
	l, err := net.Listen("unix", "@holdfast/protect/plug")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	address := serving(t)
	h, err := plug.New().Hold(t.Context(), target(t, address))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	awaitGone(t)
	if left, err := filepath.Glob(protect.LockDir + "/*-plug.lock"); err != nil || len(left) > 0 {
		t.Errorf("files: %v, %v", left, err)
	}
}

// Ports that other hosts reach are refused, because a plug would hold only some of their
// connections.
func TestOutside(t *testing.T) {
	dummy := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "outside0"}}
	if err := netlink.LinkAdd(dummy); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(dummy); err != nil {
			t.Error(err)
		}
	})
	for _, a := range []string{"192.0.2.7/24", "2001:db8::7/64"} {
		addr, err := netlink.ParseAddr(a)
		if err == nil {
			addr.Flags = unix.IFA_F_NODAD
			err = netlink.AddrAdd(dummy, addr)
		}
		if err == nil {
			err = netlink.LinkSetUp(dummy)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		listen, hold string
		refused      bool
	}{
		{"127.0.0.1:7100", "7100", false},
		{"0.0.0.0:7101", "7101", true},
		{"0.0.0.0:7102", "127.0.0.1:7102", false},
		{"192.0.2.7:7103", "7103", true},
		{"[2001:db8::7]:7104", "[2001:db8::7]:7104", true},
	} {
		protecttest.Start(t, 0, protecttest.GoServer(c.listen)...)
		at := netip.MustParseAddrPort(c.listen)
		if at.Addr().IsUnspecified() {
			at = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), at.Port())
		}
		protecttest.AwaitListening(t, at.String())
		to := target(t, c.hold)
		probed := plug.New().Probe(t.Context(), to)
		h, err := plug.New().Hold(t.Context(), to)
		if err == nil {
			err = errors.Join(err, h.Release(t.Context()))
		}
		for _, e := range []error{probed, err} {
			if (e != nil) != c.refused || c.refused && !strings.Contains(e.Error(), "other hosts") {
				t.Errorf("listening on %s, holding %s: %v", c.listen, c.hold, e)
			}
		}
	}
	awaitGone(t)
}

// A server is killed and started again while clients connect all the time.
func TestProtect(t *testing.T) {
	before := protecttest.Look(t)
	address := protecttest.FreePort(t)
	argv := protecttest.GoServer(address)
	pidfile := protecttest.StartFile(t, 0, argv...)
	protecttest.AwaitListening(t, address)
	load := protecttest.StartLoad(t, address, 50*time.Millisecond, nil)
	for range 2 {
		seen := load.Total()
		poll.Until(t, "clients come", func() bool { return load.Total() > seen+10 })
		r, err := protect.Run(t.Context(), protect.Options{
			Spec: protect.Spec{Addresses: protecttest.Addresses(t, address), Backend: protect.Plug, Limit: protecttest.Patience},
			Wait: time.Minute, Drain: protecttest.Patience, Command: protecttest.Restart(pidfile, 0, 200*time.Millisecond, argv...),
			Stdout: os.Stdout, Stderr: os.Stderr, Keeper: []string{"/proc/self/exe", roleKeeper}, LockDir: t.TempDir(), Log: slog.Default(),
		})
		if err != nil || r.Backend != protect.Plug || r.ExitCode != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		t.Logf("held %d, %v", r.Released.Stats.Held, r.Steps)
	}
	total, failed, longest := load.Stop()
	t.Logf("%d clients, longest %v", total, longest)
	for _, err := range failed {
		t.Error("a client:", err)
	}
	if err := protecttest.KillFile(pidfile); err != nil {
		t.Error(err)
	}
	protecttest.NothingLeft(t, before)
}
