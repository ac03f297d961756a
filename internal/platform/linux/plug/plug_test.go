package plug_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/plug"
	"holdfast/test/poll"
	"holdfast/test/vm"
	"holdfast/test/vm/vmtest"
)

// All tests run in an emulated machine: few kernels have the qdisc, and lo is shared
// by the whole host.
func TestMain(m *testing.M) {
	os.Exit(vmtest.Main(m, vm.Config{Modules: []string{"sch_prio", "sch_plug", "cls_flower"}}))
}

const patience = time.Minute

// server answers every connection with its name and closes it.
type server struct {
	net.Listener
	done chan struct{}
}

func serve(t *testing.T, address, name string) *server {
	t.Helper()
	var l net.Listener
	poll.Until(t, "listening on "+address, func() bool {
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	s := &server{l, make(chan struct{})}
	go func() {
		defer close(s.done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			_ = c.Close()
		}
	}()
	t.Cleanup(s.stop)
	return s
}

func (s *server) stop() {
	_ = s.Close() // closed again by the cleanup
	<-s.done
}

// clients connect concurrently, and return each one's answer or error.
func clients(n int, address string) func() []string {
	got := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { got[i] = ask(address) })
	}
	return func() []string { wg.Wait(); return got }
}

func ask(address string) string {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func install(t *testing.T) *plug.Plug {
	t.Helper()
	p, err := plug.Install("lo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Remove(); err != nil {
			t.Error(err)
		}
		if got := qdiscs(t); got != "noqueue" {
			t.Errorf("left on lo: %s", got)
		}
	})
	return p
}

// qdiscs returns the kinds of lo's qdiscs, the root's first.
func qdiscs(t *testing.T) string {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	all, err := netlink.QdiscList(lo)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, q := range all {
		kinds = append(kinds, q.Type())
	}
	return strings.Join(kinds, " ")
}

func waiting(t *testing.T, p *plug.Plug, n int) {
	t.Helper()
	poll.Until(t, fmt.Sprintf("%d SYNs wait", n), func() bool {
		s, err := p.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return s.Waiting == n
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mustBe fails unless all clients got want.
func mustBe(t *testing.T, got []string, want string) {
	t.Helper()
	wrong := map[string]int{}
	for _, g := range got {
		if g != want {
			wrong[g]++
		}
	}
	if len(wrong) > 0 {
		t.Errorf("of %d clients, want %q: %v", len(got), want, wrong)
	}
}

// A server is replaced by another one while clients connect. All clients reach the
// new one, in both address families, and clients of other ports do not wait.
func TestHoldOverRestart(t *testing.T) {
	for _, address := range []string{"127.0.0.1:7100", "[::1]:7101"} {
		port := netip.MustParseAddrPort(address).Port()
		p := install(t)
		old := serve(t, address, "old")
		other := serve(t, "127.0.0.1:7200", "other")
		mustBe(t, clients(20, address)(), "old")
		must(t, p.Hold(plug.Match{Port: port}))
		old.stop()
		got := clients(200, address)
		waiting(t, p, 200)
		mustBe(t, clients(5, "127.0.0.1:7200")(), "other")
		serve(t, address, "new")
		must(t, p.Release())
		mustBe(t, got(), "new")
		mustBe(t, clients(20, address)(), "new")
		if s, err := p.Stats(); err != nil || s.Dropped != 0 || s.Waiting != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		other.stop()
		must(t, p.Remove())
	}
}

// Packets of established connections pass a closed plug.
func TestEstablishedPass(t *testing.T) {
	p := install(t)
	l, err := net.Listen("tcp", "127.0.0.1:7100")
	must(t, err)
	defer l.Close()
	near, err := net.Dial("tcp", "127.0.0.1:7100")
	must(t, err)
	defer near.Close()
	far, err := l.Accept()
	must(t, err)
	defer far.Close()
	must(t, p.Hold(plug.Match{Addr: netip.MustParseAddr("127.0.0.1"), Port: 7100}))
	must(t, near.SetDeadline(time.Now().Add(patience)))
	for i := range 100 {
		_, err := far.Write([]byte{byte(i)})
		must(t, err)
		b := make([]byte, 1)
		if _, err := near.Read(b); err != nil || b[0] != byte(i) {
			t.Fatalf("byte %d: %v, %v", i, b, err)
		}
		_, err = near.Write(b)
		must(t, err)
	}
}

// Only the selected address is held.
func TestOtherAddressPasses(t *testing.T) {
	p := install(t)
	serve(t, "127.0.0.1:7100", "four")
	serve(t, "127.0.0.2:7100", "other four")
	serve(t, "[::1]:7100", "six")
	must(t, p.Hold(plug.Match{Addr: netip.MustParseAddr("127.0.0.1"), Port: 7100},
		plug.Match{Addr: netip.MustParseAddr("::1"), Port: 7101}))
	mustBe(t, clients(5, "127.0.0.2:7100")(), "other four")
	mustBe(t, clients(5, "[::1]:7100")(), "six")
	got := clients(5, "127.0.0.1:7100")
	waiting(t, p, 5)
	must(t, p.Release())
	mustBe(t, got(), "four")
}

// A hold longer than the first retransmission timeout: each waiting client has one
// SYN in the plug, without retransmissions.
func TestLongHold(t *testing.T) {
	p := install(t)
	must(t, p.Hold(plug.Match{Port: 7100}))
	got := clients(50, "127.0.0.1:7100")
	waiting(t, p, 50)
	time.Sleep(4 * time.Second) // retransmissions would come after 1 s and 2 s
	waiting(t, p, 50)
	serve(t, "127.0.0.1:7100", "up")
	must(t, p.Release())
	mustBe(t, got(), "up")
}

// The process that installed the plug is dead: the next one finds the plug and
// releases everything.
func TestFindAfterCrash(t *testing.T) {
	if _, err := plug.Find("lo"); !errors.Is(err, plug.ErrNone) {
		t.Errorf("without a plug: %v", err)
	}
	first := install(t)
	serve(t, "127.0.0.1:7100", "up")
	must(t, first.Hold(plug.Match{Port: 7100}))
	got := clients(50, "127.0.0.1:7100")
	waiting(t, first, 50)
	if _, err := plug.Install("lo"); !errors.Is(err, plug.ErrExists) {
		t.Errorf("a second one: %v", err)
	}
	second, err := plug.Find("lo")
	must(t, err)
	must(t, second.Remove())
	mustBe(t, got(), "up")
	if q := qdiscs(t); q != "noqueue" {
		t.Errorf("left: %s", q)
	}
	must(t, second.Remove()) // Remove is idempotent
	mustBe(t, clients(5, "127.0.0.1:7100")(), "up")
}

// A plug that stays on the device drops no packet when it is closed and opened, and holds other
// ports each time.
func TestHoldsDropNothing(t *testing.T) {
	p := install(t)
	serve(t, "127.0.0.1:7100", "one")
	serve(t, "127.0.0.1:7101", "two")
	to, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer to.Close()
	from, err := net.Dial("udp", to.LocalAddr().String())
	must(t, err)
	defer from.Close()
	const holds = 50
	sent, stop := 0, make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := from.Write([]byte("datagram")); err != nil {
				t.Error(err)
				return
			}
			sent++
			if _, _, err := to.ReadFrom(make([]byte, 16)); err != nil { // or the receiver would drop some
				t.Errorf("datagram %d: %v", sent, err)
				return
			}
		}
	})
	must(t, to.SetReadDeadline(time.Now().Add(patience)))
	for i := range holds {
		port, name := uint16(7100+i%2), []string{"one", "two"}[i%2]
		must(t, p.Hold(plug.Match{Port: port}))
		got := clients(3, fmt.Sprintf("127.0.0.1:%d", port))
		waiting(t, p, 3)
		mustBe(t, clients(1, fmt.Sprintf("127.0.0.1:%d", 7101-i%2))(), []string{"two", "one"}[i%2])
		must(t, p.Release())
		mustBe(t, got(), name)
	}
	close(stop)
	sending.Wait()
	t.Logf("%d datagrams over %d holds", sent, holds)
	if sent < holds {
		t.Errorf("only %d datagrams over %d holds", sent, holds)
	}
}

// A foreign root qdisc is left alone.
func TestForeignQdisc(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	foreign := netlink.NewPrio(netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT})
	must(t, netlink.QdiscAdd(foreign))
	before := qdiscs(t)
	if _, err := plug.Install("lo"); !errors.Is(err, plug.ErrInUse) || !strings.Contains(fmt.Sprint(err), "prio") {
		t.Errorf("got %v", err)
	}
	if _, err := plug.Find("lo"); !errors.Is(err, plug.ErrNone) {
		t.Errorf("found: %v", err)
	}
	if after := qdiscs(t); after != before {
		t.Errorf("was %s, is %s", before, after)
	}
	must(t, netlink.QdiscDel(foreign))
}

func TestNoSuchDevice(t *testing.T) {
	if _, err := plug.Install("nope0"); err == nil || !strings.Contains(err.Error(), "nope0") {
		t.Errorf("got %v", err)
	}
}

// A kernel without one of the modules.
func TestProbe(t *testing.T) {
	before := qdiscs(t)
	must(t, plug.Probe())
	if after := qdiscs(t); after != before {
		t.Errorf("was %s, is %s", before, after)
	}
	for _, module := range []string{"cls_flower", "sch_plug"} {
		unload(t, module)
		if err := plug.Probe(); !errors.Is(err, plug.ErrUnsupported) || !strings.Contains(err.Error(), module) {
			t.Errorf("without %s: %v", module, err)
		}
		p, err := plug.Install("lo")
		if err == nil {
			err = errors.Join(p.Hold(plug.Match{Port: 7100}), p.Remove())
		}
		if !errors.Is(err, plug.ErrUnsupported) {
			t.Errorf("without %s: %v", module, err)
		}
		if after := qdiscs(t); after != before { // after a partial installation
			t.Errorf("was %s, is %s", before, after)
		}
	}
}

// unload removes a module for the time of a test, as soon as it is unused: a probe's
// namespace releases it a moment later.
func unload(t *testing.T, module string) {
	t.Helper()
	t.Cleanup(func() {
		files, err := filepath.Glob("/vm/modules/*.ko")
		must(t, err)
		for _, path := range files {
			f, err := os.Open(path)
			must(t, err)
			if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
				t.Errorf("load %s again: %v", path, err)
			}
			f.Close()
		}
	})
	poll.Until(t, module+" is unloaded", func() bool { return unix.DeleteModule(module, unix.O_NONBLOCK) == nil })
}
