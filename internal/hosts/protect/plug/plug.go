// Package plug holds connections like the write-up on HAProxy's reloads: their SYNs
// wait in a plug, a queueing discipline of lo (package linux/plug). It holds the packets
// that this host sends to itself, and is for kernels on which no other backend works.
//
// A qdisc does not end with the process that created it. Each plug therefore has a
// watcher, a process that removes the plug when the holder dies. If the watcher dies,
// the holder removes the plug. Both keep a lock. If a process can take the lock, an
// existing plug is unused, and the process removes it.
package plug

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"holdfast/internal/hosts/protect"
	qdisc "holdfast/internal/platform/linux/plug"
	"holdfast/internal/platform/linux/sockdiag"
)

// device is the device of all packets from a host to itself.
const device = "lo"

// Backend is the backend plug. Its methods may be called from any goroutine. The
// program has to call Watch if its argument is RoleWatcher.
type Backend struct {
	mu     sync.Mutex
	wanted bool  // see Prepare
	kept   *laid // the prepared plug; nil: none
	busy   bool  // a hold uses it
}

// New returns a backend. It prepares nothing.
func New() *Backend { return &Backend{} }

// RoleWatcher is the argument that makes this program a watcher.
const RoleWatcher = "plug-watcher"

// Name returns plug.
func (*Backend) Name() protect.Name { return protect.Plug }

// Probe creates a plug in a separate network namespace.
func (*Backend) Probe(_ context.Context, t protect.Target) error {
	if err := fits(t); err != nil {
		return err
	}
	if err := qdisc.Vacant(device); err != nil && !errors.Is(err, qdisc.ErrExists) {
		return explain(err)
	}
	return explain(qdisc.Probe())
}

// fits rejects a target that a plug on lo would not hold completely.
func fits(t protect.Target) error {
	if t.Forwarded {
		return errors.New("it holds packets to this host only, and these are forwarded to another network namespace")
	}
	ls, err := t.Serving()
	if err != nil {
		return err
	}
	outside, err := outside()
	if err != nil {
		return err
	}
	for _, a := range t.Addresses {
		reached := []netip.Addr{a.Addr}
		if !a.Addr.IsValid() {
			reached = nil
			for _, l := range ls {
				reached = append(reached, l.Addr.Addr())
			}
		}
		for _, r := range reached {
			for _, o := range outside {
				if r = r.Unmap(); r == o || r.IsUnspecified() {
					return fmt.Errorf("it holds only what this host sends to itself, and other hosts reach the port by %v", o)
				}
			}
		}
	}
	return nil
}

// outside returns the addresses of this network namespace that are not on lo. Packets
// from other hosts to them do not pass lo.
func outside() ([]netip.Addr, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, l := range links {
		if l.Name == device {
			continue
		}
		as, err := l.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range as {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				out = append(out, p.Addr().Unmap())
			}
		}
	}
	return out, nil
}

func explain(err error) error {
	if errors.Is(err, qdisc.ErrUnsupported) {
		return fmt.Errorf("the kernel lacks a queueing discipline or filter: %w", err)
	}
	return err
}

// Prepare puts an open plug on lo that stays between holds, or removes it. A hold then drops no
// packet on lo. Meanwhile every packet on lo takes the lock of its queueing discipline, and other
// processes can hold nothing by a plug.
func (b *Backend) Prepare(wanted bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted = wanted
	b.forgetLost()
	switch {
	case wanted && b.kept == nil:
		l, err := lay()
		if err != nil {
			return fmt.Errorf("put a plug on %s: %w", device, explain(err))
		}
		b.kept = l
	case !wanted && b.kept != nil && !b.busy:
		l := b.kept
		b.kept = nil
		return l.remove()
	}
	return nil
}

// Hold closes the plug on lo. It puts one there, unless one is prepared.
func (b *Backend) Hold(_ context.Context, t protect.Target) (protect.Held, error) {
	if err := fits(t); err != nil {
		return nil, err
	}
	l, err := b.take()
	if err != nil {
		return nil, err
	}
	h := &held{backend: b, laid: l, begun: time.Now()}
	if err := l.close(h, t.Addresses); err != nil {
		return nil, errors.Join(explain(err), b.giveBack(l))
	}
	return h, nil
}

// take returns the prepared plug, or a new one.
func (b *Backend) take() (*laid, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy {
		return nil, fmt.Errorf("the plug of this host: %w", protect.ErrTaken)
	}
	b.forgetLost()
	if b.kept != nil {
		b.busy = true
		return b.kept, nil
	}
	l, err := lay()
	if err != nil {
		return nil, explain(err)
	}
	if b.wanted {
		b.kept, b.busy = l, true
	}
	return l, nil
}

// forgetLost releases what is left of a prepared plug whose watcher has died. The lock is held.
func (b *Backend) forgetLost() {
	if b.kept != nil && !b.busy && b.kept.lost() {
		_ = b.kept.remove() // the plug is gone, and no hold lost by it
		b.kept = nil
	}
}

// giveBack removes a plug after a hold, or leaves it open if it is prepared.
func (b *Backend) giveBack(l *laid) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l != b.kept {
		return l.remove()
	}
	b.busy = false
	var err error
	if b.wanted && !l.lost() {
		if err = l.open(); err == nil {
			return nil
		}
	}
	b.kept = nil
	return errors.Join(err, l.remove())
}

// clear removes the plug that a killed holder and its watcher have left.
func clear() error {
	p, err := qdisc.Find(device)
	if errors.Is(err, qdisc.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.Remove()
}

// Residue is the device: if holder and watcher are both killed, their plug stays
// closed.
func (*held) Residue() string { return device }

// Tidy is Sweep: there is one plug.
func (b *Backend) Tidy(context.Context, protect.Target, string) error { return b.Sweep() }

// Sweep removes the plug of a dead holder, unless its watcher or another holder
// manages it. Without a plug it does not take the lock, which would block a
// process that is about to make one.
func (*Backend) Sweep() error {
	if _, err := qdisc.Find(device); errors.Is(err, qdisc.ErrNone) {
		return nil
	} else if err != nil {
		return err
	}
	lock, err := takeLock()
	if errors.Is(err, protect.ErrTaken) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(clear(), unlock(lock))
}

// held is a hold.
type held struct {
	backend *Backend
	laid    *laid
	begun   time.Time

	// Under the mutex of laid:
	over  bool
	stats protect.Stats
}

// look counts the waiting packets. Packets stay in a closed plug, so the last count is
// complete. The lock is held.
func (h *held) look() {
	if h.over {
		return
	}
	s, err := h.laid.plug.Stats()
	if err != nil {
		return
	}
	h.stats.Held, h.stats.Waiting = s.Waiting, s.Waiting
	if s.Waiting > 0 {
		h.stats.Longest = time.Since(h.begun)
	}
}

// Admit lets the SYN of one source bypass the plug.
func (h *held) Admit(from netip.AddrPort, to sockdiag.Listener) (end func(), err error) {
	h.laid.mu.Lock()
	defer h.laid.mu.Unlock()
	if h.over {
		return func() {}, nil
	}
	undo, err := h.laid.plug.Pass(from, to.Addr.Port())
	if err != nil {
		return nil, err
	}
	return func() {
		h.laid.mu.Lock()
		defer h.laid.mu.Unlock()
		if !h.over { // else it is gone with the hold
			undo()
		}
	}, nil
}

// Stats counts the packets in the plug, one for each connect. The longest wait is the
// time since the hold began.
func (h *held) Stats() protect.Stats {
	h.laid.mu.Lock()
	defer h.laid.mu.Unlock()
	h.look()
	return h.stats
}

// Release releases all packets at once, first in, first out; a plug cannot release them
// gradually. If more wait than the server's backlog has room for, clients send the rest
// again after a second. On several CPUs, adjacent packets may reach the server in
// another order.
func (h *held) Release(context.Context) error {
	h.laid.mu.Lock()
	h.look()
	h.over, h.stats.Waiting = true, 0
	h.laid.mu.Unlock()
	return h.backend.giveBack(h.laid)
}
