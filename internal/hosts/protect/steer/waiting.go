package steer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/sockdiag"
)

// waiting is a socket in which datagrams of one family wait, and one that sends them again.
type waiting struct {
	ipv6      bool
	slot      bpf.Slot
	fd, again int
	passing   []func() // ends of the flows of the last batch
}

// waitingRoom is the memory for the datagrams of one family, in bytes. A small datagram takes
// about 800 of them.
const waitingRoom = 64 << 20

// openWaiting opens the waiting sockets, and sets them as those of the places.
func (h *held) openWaiting() error {
	for p, s := range h.places {
		ipv6 := p.Addr().Is6()
		i := slices.IndexFunc(h.waiting, func(w *waiting) bool { return w.ipv6 == ipv6 })
		if i < 0 {
			w := &waiting{ipv6: ipv6, fd: -1, again: -1}
			i, h.waiting = len(h.waiting), append(h.waiting, w)
			err := w.open()
			if err == nil {
				w.slot, err = h.Add(w.fd)
			}
			if err != nil {
				return fmt.Errorf("open a socket in which datagrams wait: %w", err)
			}
		}
		s.Waiting = h.waiting[i].slot
	}
	return nil
}

// open binds to loopback: the datagrams come by the program, whatever the address is.
func (w *waiting) open() (err error) {
	family, level, options := unix.AF_INET, unix.IPPROTO_IP, []int{unix.IP_RECVORIGDSTADDR, unix.IP_RECVTOS, unix.IP_RECVTTL}
	var at unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if w.ipv6 {
		family, level, options = unix.AF_INET6, unix.IPPROTO_IPV6, []int{unix.IPV6_RECVORIGDSTADDR, unix.IPV6_RECVTCLASS, unix.IPV6_RECVHOPLIMIT, unix.IPV6_V6ONLY}
		at = &unix.SockaddrInet6{Addr: netip.IPv6Loopback().As16()}
	}
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if w.fd, err = unix.Socket(family, unix.SOCK_DGRAM|flags, unix.IPPROTO_UDP); err != nil {
		return err
	}
	for _, o := range options {
		err = errors.Join(err, unix.SetsockoptInt(w.fd, level, o, 1))
	}
	err = errors.Join(err,
		unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, waitingRoom/2), // the kernel doubles it
		unix.Bind(w.fd, at))
	if err != nil {
		return err
	}
	// IPPROTO_RAW: the caller gives the whole packet, raw(7).
	w.again, err = unix.Socket(family, unix.SOCK_RAW|flags, unix.IPPROTO_RAW)
	return err
}

func (w *waiting) close() {
	for _, fd := range []*int{&w.fd, &w.again} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// dropped returns how many datagrams found no room.
func (w *waiting) dropped() int {
	const drops = 8 // SK_MEMINFO_DROPS of include/uapi/linux/sock_diag.h
	var info [drops + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	// The unix package has no function for this option: that for strings ends at a zero byte.
	_, _, failed := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(w.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if failed != 0 || size < uint32(unsafe.Sizeof(info)) {
		return 0
	}
	return int(info[drops])
}

const (
	// batch datagrams are sent again before the server's queue is looked at. More than
	// queueLimit bytes in it, half of what a socket has by default (net.core.rmem_default),
	// make the sending wait.
	batch      = 32
	maxData    = 1 << 16
	queueLimit = 96 << 10
	queueLook  = time.Millisecond
	// readLimit limits the wait for a server to read its first datagram: until then, it has
	// a socket and is not ready.
	readLimit = 5 * time.Second
	// inFlight is how long a datagram may take from the choice of its socket into the queue.
	inFlight = 2 * time.Millisecond
)

// sendAll sends all waiting datagrams again, in their order, and then lets all others through.
// It waits until the server reads, and for room in its queue. Without a server, and when ctx
// ends, it does not wait.
func (h *held) sendAll(ctx context.Context, served bool) (err error) {
	defer func() {
		for _, w := range h.waiting {
			h.stats.Lost += w.dropped()
			w.close()
		}
		h.stats.Waits = h.waits.Quantiles(h.stats.Longest)
	}()
	all := func(most int) (sent int) {
		for _, w := range h.waiting {
			n, e := h.send(w, most)
			sent, err = sent+n, errors.Join(err, e)
		}
		return sent
	}
	if served {
		if all(1) > 0 {
			read, cancel := context.WithTimeout(ctx, readLimit)
			h.awaitRoom(read, 0)
			cancel()
		}
		for ctx.Err() == nil && err == nil && all(batch) > 0 {
			h.awaitRoom(ctx, queueLimit)
		}
	}
	err = errors.Join(err, h.open())
	time.Sleep(inFlight)
	for all(batch) > 0 {
		h.awaitRoom(ctx, queueLimit)
	}
	return err
}

// send sends up to a number of datagrams that wait in w again. It lets their flows pass until
// the next call.
func (h *held) send(w *waiting, most int) (sent int, err error) {
	for _, end := range w.passing {
		end()
	}
	w.passing = nil
	for ; sent < most; sent++ {
		n, oobn, _, from, err := unix.Recvmsg(w.fd, h.buf[headers:], h.oob[:], 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return sent, nil
		case err != nil:
			return sent, fmt.Errorf("read the waiting datagrams: %w", err)
		}
		d, err := parse(from, h.oob[:oobn])
		if err == nil {
			end, e := h.Pass(d.from, d.to)
			if e == nil { // else it has been let through, or it comes back
				w.passing = append(w.passing, end)
			}
			err = w.sendAgain(d, h.buf[:headers+n])
		}
		if err != nil {
			if h.stats.Lost++; h.stats.Lost == 1 {
				h.target.Warn(fmt.Errorf("send a waiting datagram again: %w", err))
			}
			continue
		}
		wait := time.Since(d.came)
		h.waits.Add(wait, 1)
		h.stats.Held++
		h.stats.Longest = max(h.stats.Longest, wait)
	}
	return sent, nil
}

// awaitRoom waits until no more than so many bytes are in the server's queue.
func (h *held) awaitRoom(ctx context.Context, most int) {
	for ctx.Err() == nil {
		ls, err := h.target.Listeners()
		full := func(l sockdiag.Listener) bool {
			return l.Queue > most && (!h.linger || !h.isOld(l))
		}
		if err != nil || !slices.ContainsFunc(ls, full) {
			return
		}
		time.Sleep(queueLook)
	}
}

// datagram has the addresses of a datagram.
type datagram struct {
	from, to netip.AddrPort
	tos, ttl byte
	came     time.Time
}

func parse(from unix.Sockaddr, oob []byte) (d datagram, err error) {
	switch sa := from.(type) {
	case *unix.SockaddrInet4:
		d.from = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		d.from = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return d, err
	}
	for _, m := range ms {
		b := m.Data
		switch [2]int32{m.Header.Level, m.Header.Type} {
		case [2]int32{unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS}:
			if len(b) >= 16 {
				d.came = time.Unix(int64(binary.NativeEndian.Uint64(b)), int64(binary.NativeEndian.Uint64(b[8:])))
			}
		case [2]int32{unix.IPPROTO_IP, unix.IP_ORIGDSTADDR}: // struct sockaddr_in
			if len(b) >= 8 {
				d.to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))
			}
		case [2]int32{unix.IPPROTO_IPV6, unix.IPV6_ORIGDSTADDR}: // struct sockaddr_in6
			if len(b) >= 24 {
				d.to = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), binary.BigEndian.Uint16(b[2:]))
			}
		case [2]int32{unix.IPPROTO_IP, unix.IP_TOS}:
			d.tos = b[0]
		case [2]int32{unix.IPPROTO_IP, unix.IP_TTL}, [2]int32{unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT}:
			d.ttl = byte(binary.NativeEndian.Uint32(b))
		case [2]int32{unix.IPPROTO_IPV6, unix.IPV6_TCLASS}:
			d.tos = byte(binary.NativeEndian.Uint32(b))
		}
	}
	if !d.from.IsValid() || !d.to.IsValid() {
		return d, errors.New("the kernel has not told its addresses")
	}
	return d, nil
}

const (
	headers    = ipv6Header + udpHeader // the room for both before the data
	ipv4Header = 20
	ipv6Header = 40
	udpHeader  = 8
)

// sendAgain sends b as d. The data begin at headers. The packet stays on this host: its
// destination is an address of it.
func (w *waiting) sendAgain(d datagram, b []byte) error {
	udp := b[ipv6Header:]
	binary.BigEndian.PutUint16(udp, d.from.Port())
	binary.BigEndian.PutUint16(udp[2:], d.to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], 0)
	if sum := checksum(udp, d.from.Addr(), d.to.Addr()); sum != 0 {
		binary.BigEndian.PutUint16(udp[6:], sum)
	} else {
		binary.BigEndian.PutUint16(udp[6:], 0xffff) // RFC 768
	}
	if w.ipv6 {
		binary.BigEndian.PutUint32(b, 6<<28|uint32(d.tos)<<20)
		binary.BigEndian.PutUint16(b[4:], uint16(len(udp)))
		b[6], b[7] = unix.IPPROTO_UDP, d.ttl
		copy(b[8:], d.from.Addr().AsSlice())
		copy(b[24:], d.to.Addr().AsSlice())
		return unix.Sendto(w.again, b, 0, &unix.SockaddrInet6{Addr: d.to.Addr().As16()})
	}
	// The kernel sets the length, the checksum and, of a 0, the identification (raw(7)).
	b = b[ipv6Header-ipv4Header:]
	clear(b[:ipv4Header])
	b[0], b[1], b[8], b[9] = 0x45, d.tos, d.ttl, unix.IPPROTO_UDP
	copy(b[12:], d.from.Addr().AsSlice())
	copy(b[16:], d.to.Addr().AsSlice())
	return unix.Sendto(w.again, b, 0, &unix.SockaddrInet4{Addr: d.to.Addr().As4()})
}

// checksum returns the checksum of UDP (RFC 768, RFC 8200 section 8.1): the complement of the
// sum of the 16-bit words of the addresses, the protocol, the length, and the datagram.
func checksum(udp []byte, from, to netip.Addr) uint16 {
	sum := uint32(unix.IPPROTO_UDP + len(udp))
	for _, b := range [][]byte{from.AsSlice(), to.AsSlice(), udp} {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(b[0])<<8 | uint32(b[1])
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func addrPort(a protect.Address) netip.AddrPort { return netip.AddrPortFrom(a.Addr, a.Port) }

func anyIPv4(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.IPv4Unspecified(), port) }
