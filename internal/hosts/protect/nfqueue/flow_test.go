package nfqueue

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// packet4 and packet6 return IP headers, followed by the ports of a TCP header.
func packet4(options int, from, to netip.AddrPort) []byte {
	b := make([]byte, 20+options)
	b[0], b[9] = 4<<4|byte(len(b)/4), unix.IPPROTO_TCP
	f, t := from.Addr().As4(), to.Addr().As4()
	copy(b[12:], f[:])
	copy(b[16:], t[:])
	return appendPorts(b, from, to)
}

func packet6(extensions []byte, from, to netip.AddrPort) []byte {
	b := make([]byte, 40)
	b[0], b[6] = 6<<4, unix.IPPROTO_TCP
	f, t := from.Addr().As16(), to.Addr().As16()
	copy(b[8:], f[:])
	copy(b[24:], t[:])
	if len(extensions) > 0 {
		b[6] = unix.IPPROTO_DSTOPTS
	}
	return appendPorts(append(b, extensions...), from, to)
}

func appendPorts(b []byte, from, to netip.AddrPort) []byte {
	b = append(b, byte(from.Port()>>8), byte(from.Port()), byte(to.Port()>>8), byte(to.Port()))
	return append(b, 1, 2, 3, 4, 0, 0, 0, 0, 5<<4, flagSYN)
}

func TestParse(t *testing.T) {
	from4, to4 := netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:80")
	from6, to6 := netip.MustParseAddrPort("[2001:db8::1]:40000"), netip.MustParseAddrPort("[2001:db8::2]:80")
	// Destination options of 8 bytes and then of 16, RFC 8200.
	extensions := append([]byte{unix.IPPROTO_DSTOPTS, 0, 0, 0, 0, 0, 0, 0}, append([]byte{unix.IPPROTO_TCP, 1}, make([]byte, 14)...)...)
	for name, c := range map[string]struct {
		packet []byte
		want   flow
	}{
		"IPv4":                 {packet4(0, from4, to4), flow{from4, to4}},
		"IPv4 with options":    {packet4(8, from4, to4), flow{from4, to4}},
		"IPv6":                 {packet6(nil, from6, to6), flow{from6, to6}},
		"IPv6 with extensions": {packet6(extensions, from6, to6), flow{from6, to6}},
	} {
		if got, ok := parse(c.packet); !ok || got != (segment{c.want, true, 0x01020304}) {
			t.Errorf("%s: %v, %v, want %v", name, got, ok, c.want)
		}
		for n := range c.packet {
			if got, ok := parse(c.packet[:n]); ok {
				t.Errorf("%s: of %d bytes: %v", name, n, got)
			}
		}
	}
	for flags, syn := range map[byte]bool{flagSYN: true, flagSYN | flagACK: false, flagACK: false, 0: false} {
		p := packet4(0, from4, to4)
		p[len(p)-1] = flags
		if got, ok := parse(p); !ok || got.syn != syn {
			t.Errorf("flags %#x: syn is %v (%v)", flags, got.syn, ok)
		}
	}
	udp := packet4(0, from4, to4)
	udp[9] = unix.IPPROTO_UDP
	if _, ok := parse(udp); ok {
		t.Error("a flow of UDP")
	}
}

// parse returns for any packet.
func TestParseAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 128).Draw(t, "packet")
		if len(b) > 0 {
			b[0] = b[0]&15 | rapid.SampledFrom([]byte{0x40, 0x60}).Draw(t, "version")
		}
		if f, ok := parse(b); ok && (!f.from.IsValid() || !f.to.IsValid()) {
			t.Errorf("flow %v of %x", f, b)
		}
	})
}
