package sockdiag

import (
	"net"
	"net/netip"
	"slices"
	"testing"

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
	if _, err := d.conn.Send(q); err != nil {
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

// One query has the sockets of both families, and of both kinds of TCP.
func TestFamilies(t *testing.T) {
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		for _, multipath := range []bool{false, true} {
			config := net.ListenConfig{}
			config.SetMultipathTCP(multipath)
			l, err := config.Listen(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			at := l.Addr().(*net.TCPAddr).AddrPort()
			client, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			from := client.LocalAddr().(*net.TCPAddr).AddrPort()
			for _, port := range []uint16{at.Port(), 0} {
				ls, err := d.Listeners(port)
				i := slices.IndexFunc(ls, func(l Listener) bool { return l.Addr == at })
				if !slices.IsSortedFunc(ls, func(a, b Listener) int { return a.Addr.Addr().BitLen() - b.Addr.Addr().BitLen() }) {
					t.Errorf("order: %+v", ls)
				}
				if err != nil || i < 0 || ls[i].MPTCP != multipath || ls[i].Inode == 0 || ls[i].Queue != 1 || port != 0 && len(ls) != 1 {
					t.Errorf("%v, Multipath TCP %v: %+v, %v", at, multipath, ls, err)
				}
			}
			cs, err := d.Conns(at.Port(), Established)
			if err != nil || len(cs) != 1 || cs[0].Local != at || cs[0].Peer != from {
				t.Errorf("%v: connections %+v, %v", at, cs, err)
			}
			cs, err = d.Peers(at.Port(), Established)
			if err != nil || len(cs) != 1 || cs[0].Local != from || cs[0].Inode == 0 {
				t.Errorf("%v: peers %+v, %v", at, cs, err)
			}
		}
	}
}

func BenchmarkConns(b *testing.B) {
	d, err := Open()
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	for b.Loop() {
		if _, err := d.Conns(1, Established); err != nil {
			b.Fatal(err)
		}
	}
}
