package nfqueue

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// flow identifies a connection by its source and destination.
type flow struct{ from, to netip.AddrPort }

// segment is the part of a packet that a hold needs.
type segment struct {
	flow
	syn bool   // SYN without ACK: it begins the connection
	seq uint32 // the same if a SYN is sent again
}

// parse reads the addresses of an IP packet and the ports and flags of its TCP
// header.
func parse(b []byte) (segment, bool) {
	if len(b) == 0 {
		return segment{}, false
	}
	switch b[0] >> 4 {
	case 4: // RFC 791
		header := int(b[0]&15) * 4
		if len(b) < 20 || header < 20 {
			return segment{}, false
		}
		return segmentOf(netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b, header, b[9])
	case 6: // RFC 8200
		if len(b) < 40 {
			return segment{}, false
		}
		header, next := skipExtensions(b)
		return segmentOf(netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b, header, next)
	}
	return segment{}, false
}

// skipExtensions returns the offset and protocol of the header behind IPv6's extension
// headers. It does not skip a fragment header, because a SYN is not fragmented.
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

// Fields of a TCP header, RFC 9293.
const (
	tcpSeq, tcpFlags = 4, 13 // offsets
	flagSYN, flagACK = 0x02, 0x10
)

func segmentOf(from, to netip.Addr, b []byte, header int, protocol byte) (segment, bool) {
	if protocol != unix.IPPROTO_TCP || len(b) < header+tcpFlags+1 {
		return segment{}, false
	}
	return segment{flow{
		netip.AddrPortFrom(from, binary.BigEndian.Uint16(b[header:])),
		netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[header+2:])),
	}, b[header+tcpFlags]&(flagSYN|flagACK) == flagSYN, binary.BigEndian.Uint32(b[header+tcpSeq:])}, true
}
