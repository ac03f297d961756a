package bpf

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
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
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 2000)
	n, err := c.Read(b)
	return err == nil && string(b[:n]) == want
}

// Known flows go to the old socket, others to the waiting or the new one, over both
// families. Without the steering the kernel decides again.
func TestSteering(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("it needs root")
	}
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
