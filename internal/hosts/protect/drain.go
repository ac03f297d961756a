package protect

import (
	"slices"
	"time"

	"holdfast/internal/hosts/protect/keep"
	"holdfast/internal/platform/linux/sockdiag"
)

// drainLook is the interval at which the connections are checked. One check
// walks the whole connection table of the kernel, about 10 ms.
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
		for _, c := range cs {
			if !relayed[c.Inode] && busy(c) {
				n++
			}
		}
	}
	return n, nil
}

// clockTick is the longest tick of the kernel's clock.
const clockTick = 10 * time.Millisecond

// young is the number of segments with data up to which a connection of a server may be in
// the handshake of its protocol. Those of TLS and SCRAM take fewer, a message by AMQP takes 7.
const young = 8

// busy reports whether an accepted connection has an unanswered request: its
// last data came in later than any went out, or some is in transit. An idle
// kept-alive connection is not busy. A connection that has not sent anything
// yet is busy, because its request follows. So is one on which the server has sent little, and
// has done so just now: the client may be between two steps of a handshake.
func busy(c sockdiag.Conn) bool {
	switch {
	case c.Inode == 0: // not held by a process: closed, or still in a queue
		return false
	case c.Unread > 0, c.Unsent > 0, !c.HasReceived, c.SegmentsSent == 0, c.SinceReceived < c.SinceSent:
		return true
	case c.SegmentsSent <= young && c.SinceSent < quiet:
		return true
	}
	// Within one tick the order is unknown.
	return c.SinceReceived == c.SinceSent && c.SinceReceived <= clockTick
}
