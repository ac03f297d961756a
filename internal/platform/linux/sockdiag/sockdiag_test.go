package sockdiag

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// An unread answer, as after a timeout, affects one query and not the following ones.
func TestStaleAnswer(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	q, err := query{family: unix.AF_INET, protocol: unix.IPPROTO_TCP, states: 1 << Listen}.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.conn.Send(netlink.Message{
		Header: netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump}, Data: q,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Listeners(at.Port()); err == nil {
		t.Fatal("an answer to another query was accepted")
	}
	ls, err := d.Listeners(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(ls, func(l Listener) bool { return l.Addr == netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) }) {
		t.Errorf("the listener on %v is not among %v", at, ls)
	}
}
