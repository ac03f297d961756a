package protect

import (
	"time"

	"holdfast/internal/platform/linux/sockdiag"
)

// drainLook is how often the connections are looked at: a look walks the
// kernel's whole table, about 10 ms.
const drainLook = 20 * time.Millisecond

// Drained is how a drain ended.
type Drained struct {
	Took time.Duration `json:"took_ns"`
	// Left are the connections whose request was not done at the limit, or
	// that waited in the old server's queue.
	Left int `json:"left,omitempty"`
}

// Drain waits, while new connections are held, until the server has accepted all
// that it had answered the first packet of, and unless it overlaps with the next
// one, which means that it stays for them, until it has answered what it has
// accepted. It ends at the limit, or when gone is closed (nil is never).
//
// Packets without a client behind them (a SYN flood) keep it until the limit.
func (s *Sockets) Drain(limit time.Duration, overlap bool, gone <-chan struct{}) (Drained, error) {
	begin := time.Now()
	// What is held begins none with the old server.
	h := s.diag.Handshakes(s.ports()...)
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(drainLook)
	defer tick.Stop()
	for {
		left, err := s.unfinished(h, overlap)
		if err != nil || left == 0 {
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

// unfinished counts what the end of the old server's listeners would break, or of
// itself: in the order in which a connection goes on, so that none is overlooked
// on its way from one to the next.
func (s *Sockets) unfinished(h *sockdiag.Handshakes, overlap bool) (int, error) {
	n, err := h.Open()
	if err != nil {
		return 0, err
	}
	ls, err := s.Listeners()
	if err != nil {
		return 0, err
	}
	for _, l := range ls {
		n += l.Queue
	}
	if n > 0 || overlap {
		return n, nil // no need for another long look
	}
	for _, port := range s.ports() {
		cs, err := s.diag.Conns(port, sockdiag.Established, sockdiag.CloseWait)
		if err != nil {
			return 0, err
		}
		for _, c := range cs {
			if busy(c) {
				n++
			}
		}
	}
	return n, nil
}

// clockTick is the longest that the kernel's clock may stand still.
const clockTick = 10 * time.Millisecond

// busy reports whether an accepted connection has a request that is not
// answered: its last data came in later than any went out, or some is on its way.
// A connection that is kept alive and idle is not busy; one that has not sent
// anything yet is, since its request comes.
func busy(c sockdiag.Conn) bool {
	switch {
	case c.Inode == 0: // no process serves it: it is closed, or still waits in a queue
		return false
	case c.Unread > 0, c.Unsent > 0, !c.HasReceived, !c.HasSent, c.SinceReceived < c.SinceSent:
		return true
	}
	// In one tick the order is not told.
	return c.SinceReceived == c.SinceSent && c.SinceReceived <= clockTick
}
