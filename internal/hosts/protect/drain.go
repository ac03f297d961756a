package protect

import (
	"net/netip"
	"slices"
	"time"

	"holdfast/internal/hosts/protect/keep"
	"holdfast/internal/platform/linux/sockdiag"
)

// drainLook is the interval at which the connections are checked. One check
// walks the whole connection table of the kernel, which takes milliseconds.
const drainLook = 20 * time.Millisecond

// quiet is how long a UDP server has had nothing to read when it counts as drained, and how
// long a client may take for a step of a handshake.
// settledQUIC is the same for handshakes of QUIC: the server has answered the first packet by
// then, which is when a handshake is first seen.
const (
	quiet       = 100 * time.Millisecond
	settledQUIC = 250 * time.Millisecond
)

// Drained is the result of a drain.
type Drained struct {
	Took time.Duration `json:"took_ns"`
	// Left counts the connections that waited in the queue of the old server at
	// the limit, or had an unanswered request.
	Left int `json:"left,omitempty"`
}

// Drain waits, while new connections are held, until the server has accepted
// every connection with a handshake that began before. Without overlap it also
// waits until the server has answered the requests of the connections that it
// accepted. With overlap the old server stays for them. Drain ends at the
// limit, or when gone is closed (nil means never). It does not wait for accepted
// connections to the ports in settled, and for those of relays (package keep).
//
// Of a UDP server it waits until its queue has been empty for quiet, because a query that the
// server has read is not seen any more until it is answered. Of QUIC it waits for handshakes.
//
// Packets without a client behind them (a SYN flood) extend the drain to the
// limit.
func (s *Sockets) Drain(limit time.Duration, overlap bool, gone <-chan struct{}, settled ...uint16) (Drained, error) {
	begin := time.Now()
	ports := slices.DeleteFunc(s.ports(), func(p uint16) bool { return overlap || slices.Contains(settled, p) })
	relayed, err := keep.Relayed()
	if err != nil {
		return Drained{}, err
	}
	// Held connections start no handshake with the old server.
	h := s.diag.Handshakes(s.ports()...)
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(drainLook)
	defer tick.Stop()
	since, calm := begin, quiet
	if s.stays {
		calm = settledQUIC
	}
	for {
		left, err := s.unfinished(h, ports, relayed)
		if left > 0 {
			since = time.Now()
		}
		if err != nil || left == 0 && (!s.udp || time.Since(since) >= calm) {
			return Drained{Took: time.Since(begin)}, err
		}
		select {
		case <-tick.C:
		case <-end.C:
			return Drained{time.Since(begin), left}, nil
		case <-gone:
			return Drained{time.Since(begin), left}, nil
		}
	}
}

// unfinished counts the connections that would break if the old server, or its
// listeners, ended now. It counts the states in the order in which a connection
// passes through them, so that none is missed between two states. It counts accepted
// connections to the ports given only.
func (s *Sockets) unfinished(h *sockdiag.Handshakes, ports []uint16, relayed map[uint32]bool) (int, error) {
	n, err := h.Open()
	if err != nil {
		return 0, err
	}
	if s.begun != nil {
		n += s.begun()
	}
	ls, err := s.Listeners()
	if err != nil {
		return 0, err
	}
	for _, l := range ls {
		if !l.UDP {
			n += l.Queue
		} else if !s.stays && l.Queue > 0 {
			n++
		}
	}
	if n > 0 {
		return n, nil // no need for another slow check
	}
	for _, port := range ports {
		cs, err := s.diag.Conns(port, sockdiag.Established, sockdiag.CloseWait)
		if err != nil {
			return 0, err
		}
		var silent []sockdiag.Conn
		for _, c := range cs {
			switch {
			case relayed[c.Inode]:
			case busy(c):
				n++
			case between(c):
				silent = append(silent, c)
			}
		}
		if n > 0 || len(silent) == 0 {
			continue
		}
		reading, err := s.reading(port, silent)
		if err != nil {
			return 0, err
		}
		n += reading
	}
	return n, nil
}

// reading counts the connections of clients on this host that have not yet read what the server
// sent: on busy CPUs a client may wait for its turn for longer than quiet.
func (s *Sockets) reading(port uint16, of []sockdiag.Conn) (n int, err error) {
	peers, err := s.diag.Peers(port, sockdiag.Established)
	if err != nil {
		return 0, err
	}
	for _, p := range peers {
		if p.Unread > 0 && slices.ContainsFunc(of, func(c sockdiag.Conn) bool { return same(c.Local, p.Peer) && same(c.Peer, p.Local) }) {
			n++
		}
	}
	return n, nil
}

// same compares the addresses of two ends, of which only one may have IPv6.
func same(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && a.Addr().Unmap() == b.Addr().Unmap()
}

// clockTick is the longest tick of the kernel's clock.
const clockTick = 10 * time.Millisecond

// young is the number of segments with data up to which a connection of a server may be in
// the handshake of its protocol. Those of TLS and SCRAM take fewer, a message by AMQP takes 7.
const young = 8

// turn is how long a client on busy CPUs may wait for its turn to read.
const turn = 2 * time.Second

// between reports whether the client may still be between two steps of a handshake, if it has not
// read the server's last one.
func between(c sockdiag.Conn) bool {
	return c.Inode != 0 && c.SegmentsSent <= young && c.SinceSent < turn
}

// busy reports whether an accepted connection has an unanswered request: its
// last data came in later than any went out, or some is in transit. An idle
// kept-alive connection is not busy. A connection that has not sent anything
// yet is busy, because its request follows. So is one on which the server has sent little, and
// has done so just now: the client may be between two steps of a handshake. Its next step takes a
// round trip, and some time of the client.
func busy(c sockdiag.Conn) bool {
	switch {
	case c.Inode == 0: // not held by a process: closed, or still in a queue
		return false
	case c.Unread > 0, c.Unsent > 0, !c.HasReceived, c.SegmentsSent == 0, c.SinceReceived < c.SinceSent:
		return true
	case c.SegmentsSent <= young && c.SinceSent < quiet+2*c.RTT:
		return true
	}
	// Within one tick the order is unknown.
	return c.SinceReceived == c.SinceSent && c.SinceReceived <= clockTick
}
