package nfqueue

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// flow names a connection: who connects to what.
type flow struct{ from, to netip.AddrPort }

// parseFlow reads the addresses of an IP packet and the ports of its TCP header.
func parseFlow(b []byte) (flow, bool) {
	if len(b) == 0 {
		return flow{}, false
	}
	switch b[0] >> 4 {
	case 4: // RFC 791
		header := int(b[0]&15) * 4
		if len(b) < 20 || header < 20 {
			return flow{}, false
		}
		return withPorts(netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b, header, b[9])
	case 6: // RFC 8200
		if len(b) < 40 {
			return flow{}, false
		}
		header, next := skipExtensions(b)
		return withPorts(netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b, header, next)
	}
	return flow{}, false
}

// skipExtensions finds the header behind IPv6's extension headers. A fragment's
// is none of them here: a SYN is not fragmented.
func skipExtensions(b []byte) (offset int, protocol byte) {
	offset, protocol = 40, b[6]
	for range 8 {
		switch protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			if len(b) < offset+2 {
				return offset, protocol
			}
			protocol, offset = b[offset], offset+8+int(b[offset+1])*8
		default:
			return offset, protocol
		}
	}
	return offset, protocol
}

func withPorts(from, to netip.Addr, b []byte, header int, protocol byte) (flow, bool) {
	if protocol != unix.IPPROTO_TCP || len(b) < header+4 {
		return flow{}, false
	}
	return flow{
		netip.AddrPortFrom(from, binary.BigEndian.Uint16(b[header:])),
		netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[header+2:])),
	}, true
}
