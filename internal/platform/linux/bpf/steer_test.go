package bpf

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func udpSocket(t *testing.T, network, address string) (*net.UDPConn, int, netip.AddrPort) {
	t.Helper()
	a, err := net.ResolveUDPAddr(network, address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.ListenUDP(network, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fd := -1
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(f uintptr) { fd, err = syscall.Dup(int(f)) })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	return c, fd, c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func receives(c *net.UDPConn, want string) bool {
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 2000)
	n, err := c.Read(b)
	return err == nil && string(b[:n]) == want
}

func needsRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: it needs root")
	}
}

// Known flows go to the old socket, others to the waiting or the new one, over both
// families. Without the steering the kernel decides again.
func TestSteering(t *testing.T) {
	needsRoot(t)
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		server, _, at := udpSocket(t, "udp", host)
		waiting, waitingFD, _ := udpSocket(t, "udp", host)
		old, oldFD, _ := udpSocket(t, "udp", host)
		fresh, freshFD, _ := udpSocket(t, "udp", host)
		known, err := net.Dial("udp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer known.Close()
		unknown, err := net.Dial("udp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer unknown.Close()
		s, err := NewSteering()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var to PlaceSockets
		for _, x := range []struct {
			slot *Slot
			fd   int
		}{{&to.Waiting, waitingFD}, {&to.Old, oldFD}, {&to.New, freshFD}} {
			if *x.slot, err = s.Add(x.fd); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Steer(at, to); err != nil {
			t.Fatal(err)
		}
		if err := s.Attach([]uint16{at.Port()}); err != nil {
			t.Fatal(err)
		}
		step := func(m SteerMode, from net.Conn, what string, by *net.UDPConn) {
			t.Helper()
			if err := s.Set(m, time.Minute); err != nil {
				t.Fatal(err)
			}
			if _, err := from.Write([]byte(what)); err != nil {
				t.Fatal(err)
			}
			if !receives(by, what) {
				t.Error("not received:", what)
			}
		}
		step(SteerWatch, known, "watched", server)
		step(SteerHold, known, "known in a hold", old)
		step(SteerHold, unknown, "unknown in a hold", waiting)
		end, err := s.Pass(unknown.LocalAddr().(*net.UDPAddr).AddrPort(), at)
		if err != nil {
			t.Fatal(err)
		}
		step(SteerHold, unknown, "let through", fresh)
		end()
		step(SteerHold, unknown, "not let through any more", waiting)
		step(SteerServe, known, "known later", old)
		step(SteerServe, unknown, "unknown later", fresh)
		if err := s.Set(SteerHold, -time.Second); err != nil {
			t.Fatal(err)
		}
		_, _ = unknown.Write([]byte("late"))
		if !receives(server, "late") {
			t.Error("after the deadline it still steers")
		}
	}
}

// longPacket is a packet of QUIC version 1 with a long header of a type.
func longPacket(typ byte, to, from string) string {
	b := []byte{0xc0 | typ<<typeShift, 0, 0, 0, 1, byte(len(to))}
	b = append(append(b, to...), byte(len(from)))
	return string(append(b, from+"payload"...))
}

func shortPacket(to string) string { return "\x40" + to + "payload" }

// Packets of QUIC go to the socket of the server that chose their connection id, whatever
// the client's address is. An unknown id is an old one, unless the packet begins a connection.
func TestSteeringByConnection(t *testing.T) {
	needsRoot(t)
	cgroup := "/sys/fs/cgroup"
	if _, err := os.Stat(cgroup + "/cgroup.controllers"); err != nil {
		cgroup = "/sys/fs/cgroup/unified"
	}
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		server, _, at := udpSocket(t, "udp", host)
		old, oldFD, _ := udpSocket(t, "udp", host)
		fresh, freshFD, _ := udpSocket(t, "udp", host)
		client := func() *net.UDPConn {
			c, err := net.Dial("udp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c.(*net.UDPConn)
		}
		s, err := NewSteering()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.ByConnection(cgroup, []uint16{at.Port()}); err != nil {
			t.Fatal(err)
		}
		var to PlaceSockets
		for fd, slot := range map[int]*Slot{oldFD: &to.Old, freshFD: &to.New} {
			if *slot, err = s.Add(fd); err != nil {
				t.Fatal(err)
			}
			cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Server(cookie, fd == freshFD); err != nil {
				t.Fatal(err)
			}
		}
		for _, err := range []error{s.Steer(at, to), s.Attach([]uint16{at.Port()}), s.Set(SteerWatch, time.Minute)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		const initial = 0
		if _, err := client().Write([]byte(longPacket(initial, "begun-before", "client"))); err != nil {
			t.Fatal(err)
		}
		if !receives(server, longPacket(initial, "begun-before", "client")) {
			t.Fatal("a packet was steered before the hold")
		}
		if err := s.Set(SteerServe, time.Minute); err != nil {
			t.Fatal(err)
		}
		for _, chooser := range []*net.UDPConn{old, fresh} { // each chooses an id
			name := map[*net.UDPConn]string{old: "old-chose", fresh: "new-chose"}[chooser]
			if _, err := chooser.WriteToUDPAddrPort([]byte(longPacket(handshake, "client", name)), client().LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.Handshakes(); n != 2 { // of one, only the answer was seen
			t.Errorf("%d handshakes with the old server are counted, want 2", n)
		}
		one := client()
		for i, c := range []struct {
			from   *net.UDPConn // nil: another address than all before
			packet string
			by     *net.UDPConn
		}{
			{nil, longPacket(initial, "random-id", "client"), fresh},
			{nil, longPacket(initial, "begun-before", "client"), old},
			{nil, longPacket(handshake, "unheard", "client"), old},
			{nil, shortPacket("unheard99"), old}, // of a server before
			{nil, "\x40", old},
			{nil, shortPacket("new-chose"), fresh},
			{nil, shortPacket("old-chose"), old},
			{one, longPacket(initial, "old-chose", "client"), old}, // a handshake that is not over
			{one, longPacket(handshake, "old-chose", "client"), old},
			{one, shortPacket("old-chose"), old},
			{one, shortPacket("secret-01"), old}, // sent in secret
			{one, longPacket(handshake, "new-chose", "client"), fresh},
			{one, longPacket(handshake, "secret-00", "client"), fresh},
			{one, shortPacket("secret-02"), fresh},
			{one, shortPacket("old-chose"), old},
			{nil, shortPacket("secret-02"), fresh}, // known by now
		} {
			from := c.from
			if from == nil {
				from = client()
			}
			if _, err := from.Write([]byte(c.packet)); err != nil {
				t.Fatal(err)
			}
			if !receives(c.by, c.packet) {
				t.Errorf("%s: packet %d went to the other server", host, i)
			}
		}
		if err := s.Steer(at, PlaceSockets{Old: KernelChooses, New: to.New}); err != nil {
			t.Fatal(err)
		}
		for packet, by := range map[string]*net.UDPConn{
			shortPacket("old-chose"): server, longPacket(initial, "another", "client"): fresh,
		} {
			if _, err := client().Write([]byte(packet)); err != nil {
				t.Fatal(err)
			}
			if !receives(by, packet) {
				t.Errorf("%s: the kernel does not choose for old connections only: %q", host, packet)
			}
		}
		if n := s.Handshakes(); n != 4 { // of packets 1 and 2 as well
			t.Errorf("%d handshakes with the old server are counted, want 4", n)
		}
	}
}
