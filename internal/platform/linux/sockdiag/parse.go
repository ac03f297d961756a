package sockdiag

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var errShort = errors.New("sock_diag: the kernel's answer is too short")

// message is struct inet_diag_msg of include/uapi/linux/inet_diag.h.
type message struct {
	local, peer    netip.AddrPort
	device         uint32
	cookie         uint64
	rqueue, wqueue uint32
	uid, inode     uint32
	attrs          []byte
}

func parse(b []byte) (message, error) {
	if len(b) < messageLen {
		return message{}, errShort
	}
	family := b[0]
	m := message{local: addrPort(family, b[8:24], b[4:6]), peer: addrPort(family, b[24:40], b[6:8])}
	u32 := binary.NativeEndian.Uint32
	m.device = u32(b[40:])
	m.cookie = uint64(u32(b[44:])) | uint64(u32(b[48:]))<<32
	// b[52:56] is the time to the next timer.
	m.rqueue, m.wqueue, m.uid, m.inode = u32(b[56:]), u32(b[60:]), u32(b[64:]), u32(b[68:])
	m.attrs = b[messageLen:]
	return m, nil
}

func addrPort(family uint8, addr, port []byte) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(addr))
	if family == unix.AF_INET {
		a = netip.AddrFrom4([4]byte(addr[:4]))
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
}

func parseListener(b []byte) (Listener, error) {
	m, err := parse(b)
	if err != nil {
		return Listener{}, err
	}
	l := Listener{
		Addr: m.local, Device: m.device, Cookie: m.cookie, Inode: m.inode, UID: m.uid,
		Queue: int(m.rqueue), Backlog: int(m.wqueue),
	}
	d, err := netlink.NewAttributeDecoder(m.attrs)
	if err != nil {
		return Listener{}, err
	}
	for d.Next() {
		switch d.Type() {
		case attrV6Only:
			l.V6Only = d.Uint8() != 0
		case attrULP:
			d.Nested(func(u *netlink.AttributeDecoder) error {
				for u.Next() {
					if u.Type() == attrULPName {
						l.MPTCP = u.String() == "mptcp"
					}
				}
				return nil
			})
		}
	}
	return l, d.Err()
}

// Offsets in struct tcp_info of include/uapi/linux/tcp.h.
const (
	infoLastSent     = 44 // tcpi_last_data_sent, ms
	infoLastReceived = 52 // tcpi_last_data_recv, ms
	infoRTT          = 68 // tcpi_rtt, µs
	infoBytesIn      = 128
	infoSegmentsOut  = 156 // tcpi_data_segs_out
)

func parseConn(b []byte) (Conn, error) {
	m, err := parse(b)
	if err != nil {
		return Conn{}, err
	}
	c := Conn{Local: m.local, Peer: m.peer, Inode: m.inode, Unread: int(m.rqueue), Unsent: int(m.wqueue)}
	d, err := netlink.NewAttributeDecoder(m.attrs)
	if err != nil {
		return Conn{}, err
	}
	for d.Next() {
		if info := d.Bytes(); d.Type() == attrInfo && len(info) >= infoSegmentsOut+4 {
			ms := func(at int) time.Duration {
				return time.Duration(binary.NativeEndian.Uint32(info[at:])) * time.Millisecond
			}
			c.SinceSent, c.SinceReceived = ms(infoLastSent), ms(infoLastReceived)
			c.RTT = time.Duration(binary.NativeEndian.Uint32(info[infoRTT:])) * time.Microsecond
			c.SegmentsSent = binary.NativeEndian.Uint32(info[infoSegmentsOut:])
			c.HasReceived = binary.NativeEndian.Uint64(info[infoBytesIn:]) > 0
		}
	}
	return c, d.Err()
}
