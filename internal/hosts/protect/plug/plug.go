// Package plug holds connections as the write-up on HAProxy's reloads did: their
// SYNs wait in a plug, a queueing discipline of lo (package linux/plug). It holds
// what this host sends to itself, and is for kernels where nothing better works.
//
// A qdisc does not end with the process that made it. Behind each hold stands a
// watcher, a process that takes the plug away when the holder dies; the holder
// does when the watcher dies. Both keep an abstract unix socket open as a name: a
// process that can bind the name knows that an existing plug is unused, and removes
// it.
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
)

// device is the one that all of a host's packets to itself leave by.
const device = "lo"

// Backend is the backend plug. Its methods may be called from any goroutine. The
// program has to call Watch where its argument is RoleWatcher.
type Backend struct{}

// RoleWatcher is the argument by which this program is a watcher.
const RoleWatcher = "plug-watcher"

// Name is plug.
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

// fits refuses what a plug on lo would not hold, or only in part.
func fits(t protect.Target) error {
	if t.Forwarded {
		return errors.New("it holds what goes to this host, and these packets go on to another network namespace")
	}
	ls, err := t.Listeners()
	if err != nil {
		return err
	}
	if len(ls) == 0 {
		return protect.ErrNothingListens
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

// outside are the addresses of this network namespace that are not on lo: what
// comes to them from other hosts does not leave by lo.
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
	name, err := takeName()
	if err != nil {
		return nil, err
	}
	var w *watcher
	if err = clear(); err == nil {
		w, err = startWatcher(name)
	}
	if err != nil {
		return nil, errors.Join(err, name.Close())
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

// clear removes a plug that an earlier holder and its watcher have left.
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
// manages it. Without a plug it does not bind the name, which would block a
// process that is about to make one.
func (Backend) Sweep() error {
	if _, err := qdisc.Find(device); errors.Is(err, qdisc.ErrNone) {
		return nil
	} else if err != nil {
		return err
	}
	name, err := takeName()
	if errors.Is(err, protect.ErrTaken) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(clear(), name.Close())
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

// look takes down what waits: what is in a closed plug stays, so that the last
// look has all. The lock is held.
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

// Stats has the number of packets in the plug, one for each connect, and as the
// longest wait the time since the hold began.
func (h *held) Stats() protect.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.look()
	return h.stats
}

// Release lets all go at once, first in, first out: the plug knows no pace. Where
// more wait than the server's backlog has room for, the rest comes again after a
// second. On several CPUs the server may see neighbours in another order.
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
