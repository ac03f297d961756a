package nfqueue

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/nfqueue"
	"holdfast/internal/platform/linux/nft"
	"holdfast/internal/platform/linux/sockdiag"
)

// held is a hold.
type held struct {
	target  protect.Target
	queue   *nfqueue.Queue
	table   *nft.Table
	local   map[netip.Addr]bool // addresses of this host; nil: all packets are for it
	serving sync.WaitGroup

	mu      sync.Mutex
	open    bool // the queue is open; take gives no verdicts any more
	waiting []syn
	known   map[flow]came
	admit   map[netip.AddrPort]bool // sources that do not wait
	last    uint32                  // id of the last received packet
	remote  bool                    // some came from another host
	stats   protect.Stats
	waits   protect.Waits // of released connects
	failed  error         // of serving
}

// came is a connect whose SYN was received.
type came struct {
	seq   uint32 // of its SYN
	waits bool   // false: it was released
}

// syn is a connect that waits.
type syn struct {
	id   uint32
	flow flow
	at   time.Time
}

func newHeld(t protect.Target, q *nfqueue.Queue) *held {
	h := &held{target: t, queue: q, known: make(map[flow]came), admit: make(map[netip.AddrPort]bool)}
	if t.Forwarded {
		h.local = localAddrs()
	}
	return h
}

// localAddrs returns the addresses of this namespace. Only packets to them can
// be meant for a published port.
func localAddrs() map[netip.Addr]bool {
	as, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	m := make(map[netip.Addr]bool, len(as))
	for _, a := range as {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			m[p.Addr().Unmap().WithZone("")] = true
		}
	}
	return m
}

// serve processes packets until the queue is closed.
func (h *held) serve() {
	for {
		ps, err := h.queue.Receive()
		if errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed) {
			return
		}
		now := time.Now()
		for _, p := range ps {
			h.take(p, now)
		}
		if err != nil {
			h.mu.Lock()
			h.failed = err
			h.mu.Unlock()
			return
		}
	}
}

// take classifies a packet. A new connect waits; another SYN of a waiting
// connect is dropped; a packet for another destination passes. The first data
// of a released connection also passes, but only after the handshake of that
// release, because both take the lock.
//
// The lock is needed if the client is on this host. Its SYN reaches the server
// on the CPU that released it, and the handshake ends there. Its first data may
// arrive on the client's own CPU at that moment. While the kernel replaces the
// request with the new socket (inet_ehash_insert of
// net/ipv4/inet_hashtables.c), a lookup of either may find none, and the client
// is reset: one in some 20,000, measured on Linux 6.18.
func (h *held) take(p nfqueue.Packet, now time.Time) {
	s, ok := parse(p.Data)
	f := s.flow
	meant := ok && (h.local == nil || h.local[f.to.Addr()] || f.to.Addr().IsLoopback())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = p.ID
	switch {
	case h.open:
	case !meant || !s.syn || h.admit[f.from]:
		h.note(h.queue.Accept(p.ID))
	case h.known[f].waits:
		h.note(h.queue.Drop(p.ID))
	default:
		// A SYN that comes again after its release may have been lost behind the
		// queue. It is not another connect.
		if k, ok := h.known[f]; !ok || k.seq != s.seq {
			h.stats.Held++
		}
		h.known[f] = came{s.seq, true}
		h.waiting = append(h.waiting, syn{p.ID, f, now})
		h.remote = h.remote || !p.Loopback
	}
}

// note keeps the first error. The lock is held.
func (h *held) note(err error) {
	if h.failed == nil {
		h.failed = err
	}
}

// Admit accepts the SYN of one source.
func (h *held) Admit(from netip.AddrPort, _ sockdiag.Listener) (end func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.admit[from] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.admit, from)
	}, nil
}

// Residue returns the name of the table if the kernel would not remove it.
func (h *held) Residue() string {
	if h.table.Owned() {
		return ""
	}
	return h.table.Name()
}

// Stats counts each connection.
func (h *held) Stats() protect.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Waiting, s.Waits = len(h.waiting), h.waits.Quantiles(s.Longest)
	if len(h.waiting) > 0 {
		s.Longest = max(s.Longest, time.Since(h.waiting[0].at))
	}
	return s
}

const (
	// window is how many connects are released before the server has accepted
	// the earlier ones. wideWindow applies to clients on other hosts: their
	// handshakes take longer, and each check walks the connection table.
	window     = 32
	wideWindow = 256
	// pause is the interval of checks of the server's queue. blindPause applies
	// if the queue cannot be checked: a server accepts some ten thousand
	// connections a second.
	pause      = 500 * time.Microsecond
	blindPause = 3 * time.Millisecond
)

func (h *held) pause() time.Duration {
	if h.target.Forwarded {
		return blindPause
	}
	return pause
}

// Release releases as many connects as the server has room for, until none waits.
// Later connects then go directly to the server.
func (h *held) Release(ctx context.Context) error {
	d, err := sockdiag.Open()
	if err == nil {
		defer d.Close()
	}
	for passing := false; err == nil && ctx.Err() == nil; {
		room, known := window, true
		if !h.target.Forwarded {
			room, known = h.room(d)
		}
		// Without a server there is no queue to protect.
		if !known {
			break
		}
		if h.release(room) == 0 {
			if passing {
				break
			}
			err, passing = h.table.PassNew(), true
		}
		time.Sleep(h.pause())
	}
	return errors.Join(err, h.end())
}

// room returns how many connects the server can accept now. known is false if
// no server listens.
func (h *held) room(d *sockdiag.Diag) (n int, known bool) {
	ls, err := h.target.Listeners()
	if err != nil || len(ls) == 0 {
		return 0, false
	}
	used, most := 0, 0
	for _, l := range ls {
		used += l.Queue
		most += l.Backlog
	}
	h.mu.Lock()
	remote := h.remote
	h.mu.Unlock()
	limit := min(window, most)
	if remote {
		limit = min(wideWindow, most/2)
		for _, a := range h.target.Addresses {
			cs, err := d.Conns(a.Port, sockdiag.SynRecv)
			if err != nil {
				return 0, false
			}
			used += len(cs)
		}
	}
	return max(1, limit) - used, true
}

// release releases the first n connects and returns how many waited.
func (h *held) release(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	waited := len(h.waiting)
	n = max(0, min(n, waited))
	for _, s := range h.waiting[:n] {
		h.note(h.queue.Accept(s.id))
		h.known[s.flow] = came{h.known[s.flow].seq, false}
		h.waited(s)
	}
	h.waiting = h.waiting[n:]
	return waited
}

// waited records the wait of a released connect. The lock is held.
func (h *held) waited(s syn) {
	took := time.Since(s.at)
	h.waits.Add(took, 1)
	h.stats.Longest = max(h.stats.Longest, took)
}

// end releases everything at once and leaves nothing.
func (h *held) end() error {
	h.mu.Lock()
	h.open = true
	err := errors.Join(h.failed, h.queue.OpenUp(h.last))
	for _, s := range h.waiting {
		h.waited(s)
	}
	h.waiting = nil
	h.mu.Unlock()
	if h.table != nil {
		err = errors.Join(err, h.table.Remove())
	}
	err = errors.Join(err, h.queue.Close())
	h.serving.Wait()
	return err
}
