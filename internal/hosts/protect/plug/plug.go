// Package plug holds connections like the write-up on HAProxy's reloads: their SYNs
// wait in a plug, a queueing discipline of lo (package linux/plug). It holds the packets
// that this host sends to itself, and is for kernels on which no other backend works.
//
// A qdisc does not end with the process that created it. Each hold therefore has a
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
type Backend struct{}

// RoleWatcher is the argument that makes this program a watcher.
const RoleWatcher = "plug-watcher"

// Name returns plug.
func (Backend) Name() protect.Name { return protect.Plug }

// Probe creates a plug in a separate network namespace.
func (Backend) Probe(_ context.Context, t protect.Target) error {
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

// Hold puts a plug on lo and closes it.
func (Backend) Hold(_ context.Context, t protect.Target) (protect.Held, error) {
	if err := fits(t); err != nil {
		return nil, err
	}
	lock, err := takeLock()
	if err != nil {
		return nil, err
	}
	var w *watcher
	if err = clear(); err == nil {
		w, err = startWatcher(lock)
	}
	if err != nil {
		return nil, errors.Join(err, unlock(lock))
	}
	h := &held{target: t, watcher: w, begun: time.Now()}
	var matches []qdisc.Match
	for _, a := range t.Addresses {
		matches = append(matches, qdisc.Match{Addr: a.Addr, Port: a.Port})
	}
	if h.plug, err = qdisc.Install(device, matches...); err == nil {
		err = h.plug.Hold()
	}
	if err != nil {
		return nil, errors.Join(explain(err), clear(), w.stop())
	}
	h.watching.Go(h.watch)
	return h, nil
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
func (b Backend) Tidy(context.Context, protect.Target, string) error { return b.Sweep() }

// Sweep removes the plug of a dead holder, unless its watcher or another holder
// manages it. Without a plug it does not take the lock, which would block a
// process that is about to make one.
func (Backend) Sweep() error {
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
	target   protect.Target
	plug     *qdisc.Plug
	watcher  *watcher
	begun    time.Time
	watching sync.WaitGroup

	mu    sync.Mutex
	open  bool
	stats protect.Stats
	err   error // of opening
}

// watch removes the plug when the watcher dies, because no other process would
// remove it later.
func (h *held) watch() {
	<-h.watcher.exited
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open {
		h.removePlug()
		h.err = errors.Join(errors.New("the watcher of the plug has died, and all connections were released"), h.err)
	}
}

// removePlug removes the plug. The lock is held.
func (h *held) removePlug() {
	h.look()
	h.open = true
	h.err = h.plug.Remove()
}

// look counts the waiting packets. Packets stay in a closed plug, so the last count is
// complete. The lock is held.
func (h *held) look() {
	s, err := h.plug.Stats()
	if err != nil || h.open {
		return
	}
	h.stats.Held, h.stats.Waiting = s.Waiting, s.Waiting
	if s.Waiting > 0 {
		h.stats.Longest = time.Since(h.begun)
	}
}

// Admit lets the SYN of one source bypass the plug.
func (h *held) Admit(from netip.AddrPort, to sockdiag.Listener) (end func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open {
		return func() {}, nil
	}
	undo, err := h.plug.Pass(from, to.Addr.Port())
	if err != nil {
		return nil, err
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.open { // else it is gone with the plug
			undo()
		}
	}, nil
}

// Stats counts the packets in the plug, one for each connect. The longest wait is the
// time since the hold began.
func (h *held) Stats() protect.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.look()
	return h.stats
}

// Release releases all packets at once, first in, first out; a plug cannot release them
// gradually. If more wait than the server's backlog has room for, clients send the rest
// again after a second. On several CPUs, adjacent packets may reach the server in
// another order.
func (h *held) Release(context.Context) error {
	h.mu.Lock()
	if !h.open {
		h.removePlug()
	}
	h.stats.Waiting = 0
	err := h.err
	h.mu.Unlock()
	err = errors.Join(err, h.watcher.stop())
	h.watching.Wait()
	return err
}
