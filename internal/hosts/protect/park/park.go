// Package park holds connections in a second listening socket on the same
// address: their handshakes finish there, and the data of the clients waits. When the
// new server listens, the parking socket closes, and the kernel moves its connections to
// the new server (net/core/sock_reuseport.c, migration).
//
// It needs Linux 5.14, BPF, root, and the listeners in this network namespace. For a
// server that does not use SO_REUSEPORT it also needs a mounted cgroup2. While the
// server is down, connects succeed.
package park

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
	"holdfast/internal/platform/linux/tcpmigrate"
	"holdfast/internal/platform/tasks"
)

// Backend is the backend park.
type Backend struct{}

// Name returns park.
func (Backend) Name() protect.Name { return protect.Park }

// Probe does the same as Hold, but opens no parking socket.
func (Backend) Probe(_ context.Context, t protect.Target) error {
	p, err := prepare(t)
	if err != nil {
		return err
	}
	p.close()
	return nil
}

// Warm loads the programs, with a hook that matches no network namespace.
func (Backend) Warm() { _ = warm() } // Hold reports the error

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

// Hold opens the parking sockets.
func (Backend) Hold(ctx context.Context, t protect.Target) (protect.Held, error) {
	p, err := prepare(t)
	if err != nil {
		return nil, err
	}
	h := &held{target: t, prepared: p}
	if err := h.begin(); err != nil {
		return nil, errors.Join(err, h.undo(ctx))
	}
	watching, stop := context.WithCancel(context.Background())
	h.stop = stop
	h.watching.Go(func() { _ = tasks.Every(watching, look, h.count) }) // it returns no error
	return h, nil
}

// prepared has the resources of a hold. To create it changes nothing.
type prepared struct {
	groups []*group
	hook   *bpf.BindHook // nil without a mounted cgroup2
	// others are the cookies of the listeners on the ports that are not held.
	// They were bound before the hook existed.
	others map[uint64]bool
}

// held is a hold.
type held struct {
	target protect.Target
	*prepared

	stop     context.CancelFunc // of the count of connections
	watching sync.WaitGroup

	admitting sync.Mutex

	mu    sync.Mutex
	stats protect.Stats
	since time.Time // when the first waiting connection was seen
	came  []arrival
}

// arrival is a number of connections that were first seen together.
type arrival struct {
	at time.Time
	n  int
}

// prepare duplicates the old listeners and loads the programs.
func prepare(t protect.Target) (_ *prepared, err error) {
	if t.Forwarded {
		return nil, errors.New("the connections are forwarded to another network namespace, in which the listener may end with the server")
	}
	ls, err := t.Serving()
	if err != nil {
		return nil, err
	}
	if t.Asked && slices.ContainsFunc(ls, func(l sockdiag.Listener) bool { return l.MPTCP }) {
		return nil, errors.New("the new server is to be asked whether it is ready, and a question cannot be steered to a Multipath TCP listener")
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
		reuseport = l.hadReuseport && reuseport
	}
	all, err := listenersOn(t)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		p.others[l.Cookie] = !served(t, l)
	}
	// The hook is also attached if the old listeners have SO_REUSEPORT, because
	// they may have it from a hold that was killed.
	if err = p.hookBind(t); err != nil && !reuseport {
		return nil, err
	}
	return p, nil
}

// take duplicates the old listeners and sorts them into groups of listeners
// that are bound alike.
func (p *prepared) take(t protect.Target, ls []sockdiag.Listener) error {
	open, err := t.Owners(ls)
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
		g := groups[at]
		if g == nil {
			g = &group{place: at, parking: -1, hadReuseport: true}
			groups[at] = g
			p.groups = append(p.groups, g)
		}
		g.old = append(g.old, fd)
		g.mptcp = g.mptcp || l.MPTCP
		v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
		if err != nil {
			return fmt.Errorf("ask the listener on %v for SO_REUSEPORT: %w", l.Addr, err)
		}
		g.hadReuseport = g.hadReuseport && v != 0
	}
	return nil
}

// hookBind makes bind(2) of the new server set SO_REUSEPORT.
func (p *prepared) hookBind(t protect.Target) error {
	dir, err := cgroup2()
	if err != nil {
		return err
	}
	cookie, err := bpf.NetnsCookie(p.groups[0].old[0])
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

// begin parks one group after another. Then it closes the duplicates of the old
// listeners: an open duplicate would keep a listener open when the server closes it.
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

// undo ends a hold that began only in part. As in a release, the program is removed
// last, because it moves the parked connections to the old listeners.
func (h *held) undo(ctx context.Context) error {
	err := errors.Join(h.unpark(ctx), h.tidy())
	h.close()
	if err != nil {
		return fmt.Errorf("let the connections go that were parked already: %w", err)
	}
	return nil
}

// Stats returns the maximum that was seen in the parking sockets.
func (h *held) Stats() protect.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats
}

// look is the interval at which the parking sockets are checked.
const look = 5 * time.Millisecond

// count updates the stats.
func (h *held) count() {
	n := 0
	for _, l := range h.groups {
		n += l.queued()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if more := n - h.stats.Held; more > 0 { // the queue only grows
		h.came = append(h.came, arrival{time.Now(), more})
	}
	h.stats.Waiting, h.stats.Held = n, max(h.stats.Held, n)
	if n > 0 && h.since.IsZero() {
		h.since = time.Now()
	}
	if !h.since.IsZero() {
		h.stats.Longest = time.Since(h.since) + look
	}
}

// waits returns the quantiles of the waits until now, up to look too long. The lock is held.
func (h *held) waits(now time.Time) *protect.Quantiles {
	var w protect.Waits
	for _, a := range h.came {
		w.Add(now.Sub(a.at)+look, a.n)
	}
	return w.Quantiles(h.stats.Longest)
}

// handshakes limits the wait for the last packet of handshakes that began before the
// release. The program stays until then. The limit is the time after which a client
// sends its SYN again (RFC 6298).
const handshakes = time.Second

// Release moves the parked connections to the new server, and tidies up.
func (h *held) Release(ctx context.Context) error {
	h.stop()
	h.watching.Wait()
	h.count()
	err := h.unpark(ctx)
	if e := h.tidy(); e != nil {
		err = errors.Join(err, fmt.Errorf("tidy up the new listeners: %w", e))
	}
	h.close()
	return err
}

// unpark closes the parking sockets, which moves their connections. It waits until the
// last handshakes have ended; their connections move as well. A program cannot be
// removed from a Multipath TCP listener. For such listeners it is removed before, from
// the parking socket, and the kernel's setting of migration replaces it meanwhile.
func (h *held) unpark(ctx context.Context) (err error) {
	if h.switches() {
		setting, e := tcpmigrate.On()
		if e != nil {
			return e
		}
		defer func() { err = errors.Join(err, setting.Off()) }()
	}
	for _, l := range h.groups {
		err = errors.Join(err, l.selector.EndPass())
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
	// The hook is closed only now: while a parking socket has the address, a
	// server that does not set SO_REUSEPORT needs the hook to bind it.
	if h.hook != nil {
		h.hook.Close()
	}
	h.mu.Lock()
	h.stats.Waiting = 0
	h.stats.Waits = h.waits(time.Now())
	h.mu.Unlock()
	h.awaitHandshakes(ctx)
	h.watching.Wait() // for a search that exceeded pointTime
	return err
}

// switches reports whether the release needs the kernel's setting of migration.
func (h *held) switches() bool {
	return slices.ContainsFunc(h.groups, func(l *group) bool { return l.mptcp })
}

// awaitHandshakes waits for the end of the handshakes that were unfinished when it was
// called. Later ones belong to the new server from their start.
func (h *held) awaitHandshakes(ctx context.Context) {
	d, err := sockdiag.Open()
	if err != nil {
		return // only handshakes of slow clients are at risk
	}
	defer d.Close()
	open := d.Handshakes(protect.Ports(h.target.Addresses)...)
	for end := time.Now().Add(handshakes); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(look) {
		if n, err := open.Open(); n == 0 || err != nil {
			return
		}
	}
}
