// Package park holds connections in a second listening socket on the same
// address: their handshakes finish there, and what clients send waits. When the
// new server listens, the parking socket closes, and the kernel hands what it
// had not handed out to the new server (net/core/sock_reuseport.c, migration).
//
// It needs Linux 5.14, BPF, root, and the listeners in this network namespace;
// for a server that does not use SO_REUSEPORT a mounted cgroup2 too. While the
// server is down its port looks up: connects succeed.
package park

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
	"holdfast/internal/platform/linux/tcpmigrate"
)

// Backend is the backend park.
type Backend struct{}

// Name is park.
func (Backend) Name() protect.Name { return protect.Park }

// Probe does all that Hold does except for listening.
func (Backend) Probe(_ context.Context, t protect.Target) error {
	p, err := prepare(t)
	if err != nil {
		return err
	}
	p.close()
	return nil
}

// Warm loads the programs, the hook for no network namespace that there is.
func (Backend) Warm() { _ = warm() } // Hold says what is wrong

func warm() error {
	s, err := bpf.NewSelector()
	if err != nil {
		return err
	}
	s.Close()
	dir, err := cgroup2()
	if err != nil {
		return err
	}
	h, err := bpf.HookBind(dir, 0, []uint16{0})
	if err == nil {
		h.Close()
	}
	return err
}

// Hold parks.
func (Backend) Hold(ctx context.Context, t protect.Target) (protect.Held, error) {
	p, err := prepare(t)
	if err != nil {
		return nil, err
	}
	h := &held{target: t, prepared: p, stop: make(chan struct{})}
	if err := h.begin(); err != nil {
		return nil, errors.Join(err, h.undo(ctx))
	}
	h.watching.Go(h.watch)
	return h, nil
}

// prepared is what a hold needs, before anything is changed.
type prepared struct {
	groups []*group
	hook   *bpf.BindHook // nil where there is no cgroup2 for it
	// others are the cookies of listeners on the ports that are not held:
	// they were bound before the hook existed.
	others map[uint64]bool
}

// held is a hold.
type held struct {
	target protect.Target
	*prepared

	stop     chan struct{}
	watching sync.WaitGroup

	mu    sync.Mutex
	stats protect.Stats
	since time.Time // when the first connection was seen to wait
}

// prepare takes hold of the old listeners and loads the programs.
func prepare(t protect.Target) (_ *prepared, err error) {
	if t.Forwarded {
		return nil, errors.New("the connections go on to another network namespace, where the listener may not outlive the server")
	}
	ls, err := t.Listeners()
	if err != nil {
		return nil, err
	}
	if len(ls) == 0 {
		return nil, protect.ErrNothingListens
	}
	p := &prepared{others: make(map[uint64]bool)}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if err := p.take(t, ls); err != nil {
		return nil, err
	}
	reuseport := true
	for _, l := range p.groups {
		if l.selector, err = bpf.NewSelector(); err != nil {
			return nil, err
		}
		reuseport = l.reuseport() && reuseport
	}
	all, err := listenersOn(t)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		p.others[l.Cookie] = !served(t, l)
	}
	// Also where the old ones have SO_REUSEPORT: a hold whose process was
	// killed may have left it to them.
	if err = p.hookBind(t); err != nil && !reuseport {
		return nil, err
	}
	return p, nil
}

// take duplicates the old listeners and sorts them into groups of listeners
// that are bound alike.
func (p *prepared) take(t protect.Target, ls []sockdiag.Listener) error {
	var inodes []uint32
	for _, l := range ls {
		inodes = append(inodes, l.Inode)
	}
	open, err := t.Owners(inodes...)
	if err != nil {
		return err
	}
	groups := make(map[place]*group)
	for _, l := range ls {
		f, ok := open[l.Inode]
		if !ok {
			return fmt.Errorf("no process here has the listener on %v open", l.Addr)
		}
		fd, err := pidfd.TakeSocket(f, l.Inode)
		if err != nil {
			return err
		}
		at := placeOf(l)
		if groups[at] == nil {
			groups[at] = &group{place: at, parking: -1}
			p.groups = append(p.groups, groups[at])
		}
		o, err := newOld(fd, l)
		groups[at].old = append(groups[at].old, o)
		groups[at].mptcp = groups[at].mptcp || l.MPTCP
		if err != nil {
			return err
		}
	}
	return nil
}

// hookBind makes the new server's bind(2) ask for SO_REUSEPORT.
func (p *prepared) hookBind(t protect.Target) error {
	dir, err := cgroup2()
	if err != nil {
		return err
	}
	cookie, err := bpf.NetnsCookie(p.groups[0].old[0].fd)
	if err != nil {
		return err
	}
	p.hook, err = bpf.HookBind(dir, cookie, protect.Ports(t.Addresses))
	return err
}

func (p *prepared) close() {
	if p.hook != nil {
		p.hook.Close()
	}
	for _, l := range p.groups {
		l.close()
	}
}

// begin parks one group after another, then closes our descriptors of the old
// listeners: a listener that we had open would not close when the server closes
// it.
func (h *held) begin() error {
	for _, l := range h.groups {
		if err := l.park(h.target.Hide); err != nil {
			return fmt.Errorf("park the connections to %v: %w", l.addr, err)
		}
	}
	for _, l := range h.groups {
		l.closeOld()
	}
	return nil
}

// undo ends a hold that did not begin whole: the program goes last, as in a
// release, since it moves what is parked to the old listeners.
func (h *held) undo(ctx context.Context) error {
	err := h.unpark(ctx)
	for _, l := range h.groups {
		err = errors.Join(err, l.restore())
	}
	h.close()
	if err != nil {
		return fmt.Errorf("let the connections go that were parked already: %w", err)
	}
	return nil
}

// Stats are the most that was seen in the parking sockets.
func (h *held) Stats() protect.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats
}

// look is the interval at which the parking sockets are checked.
const look = 5 * time.Millisecond

// watch keeps the stats.
func (h *held) watch() {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		h.count()
		select {
		case <-tick.C:
		case <-h.stop:
			return
		}
	}
}

func (h *held) count() {
	n := 0
	for _, l := range h.groups {
		n += l.queued()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Waiting, h.stats.Held = n, max(h.stats.Held, n)
	if n > 0 && h.since.IsZero() {
		h.since = time.Now()
	}
	if !h.since.IsZero() {
		h.stats.Longest = time.Since(h.since) + look
	}
}

// handshakes is how long a client's last packet of a handshake, which began
// before the release, may be on its way: until then the program stays. It is the
// time after which a client sends its SYN again (RFC 6298).
const handshakes = time.Second

// Release gives the parked connections to the new server, and tidies up.
func (h *held) Release(ctx context.Context) error {
	close(h.stop)
	h.watching.Wait()
	h.count()
	err := h.unpark(ctx)
	if e := h.tidy(); e != nil {
		err = errors.Join(err, fmt.Errorf("tidy up the new listeners: %w", e))
	}
	h.close()
	return err
}

// unpark closes the parking sockets, by which their connections move, and waits
// until the last handshakes are over, whose connections move as well. A program
// cannot be taken from a Multipath TCP listener, so where the server has those it
// goes before, by way of the parking socket, and the kernel's setting does its
// work meanwhile.
func (h *held) unpark(ctx context.Context) (err error) {
	if h.switches() {
		setting, e := tcpmigrate.On()
		if e != nil {
			return e
		}
		defer func() { err = errors.Join(err, setting.Off()) }()
	}
	pointed := h.point()
	for _, l := range h.groups {
		if !pointed[l] {
			err = errors.Join(err, l.selector.Unchoose())
		}
		if l.mptcp && l.parking >= 0 {
			err = errors.Join(err, bpf.Detach(l.parking))
		}
		l.unpark()
		err = errors.Join(err, l.selector.Unchoose())
	}
	// Not before: as long as a parking socket has the address, a server that
	// does not ask for SO_REUSEPORT cannot bind it without the hook.
	if h.hook != nil {
		h.hook.Close()
	}
	h.mu.Lock()
	h.stats.Waiting = 0
	h.mu.Unlock()
	h.awaitHandshakes(ctx)
	h.watching.Wait() // for a look that came too late
	return err
}

// switches reports whether the release needs the kernel's setting.
func (h *held) switches() bool {
	return slices.ContainsFunc(h.groups, func(l *group) bool { return l.mptcp })
}

// awaitHandshakes waits until those are over that were unfinished on the ports
// when it began; later ones are the new server's from their start.
func (h *held) awaitHandshakes(ctx context.Context) {
	d, err := sockdiag.Open()
	if err != nil {
		return // then only those of slow clients are at risk
	}
	defer d.Close()
	open := d.Handshakes(protect.Ports(h.target.Addresses)...)
	for end := time.Now().Add(handshakes); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(look) {
		if n, err := open.Open(); n == 0 || err != nil {
			return
		}
	}
}
