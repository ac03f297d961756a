package steer

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Datagrams that find no room are counted.
func TestDropped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("it needs root")
	}
	w := &waiting{fd: -1, again: -1}
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if n := w.dropped(); n != 0 {
		t.Errorf("%d at first", n)
	}
	if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0); err != nil { // the least
		t.Fatal(err)
	}
	at, err := unix.Getsockname(w.fd)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(at.(*unix.SockaddrInet4).Port))))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const sent = 1000
	for range sent {
		if _, err := c.Write([]byte("datagram")); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.dropped(); n < sent/2 || n > sent {
		t.Errorf("%d of %d", n, sent)
	}
}
