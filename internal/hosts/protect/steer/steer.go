// Package steer holds the datagrams of UDP servers while these restart. A program gives each
// datagram to a waiting socket in place of the server's (bpf.Steering). When the new server
// has its socket, the waiting datagrams are sent again, each with its client's address as the
// source. While old and new server run side by side, datagrams of known flows go on to the
// old one.
//
// It needs Linux 5.9, BPF, root, and the sockets in this network namespace. It leaves nothing
// behind: the kernel removes the program when this process ends.
package steer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
	"holdfast/internal/platform/tasks"
)

// Backend is the backend steer.
type Backend struct{}

// Name returns steer.
func (Backend) Name() protect.Name { return protect.Steer }

// Probe loads what Hold loads.
func (Backend) Probe(_ context.Context, t protect.Target) error {
	h, err := prepare(t)
	if err != nil {
		return err
	}
	h.close()
	return nil
}

// Tidy does nothing: a hold leaves nothing.
func (Backend) Tidy(context.Context, protect.Target, string) error { return nil }

const (
	// renewEvery and deadline limit the steering of a process that hangs.
	renewEvery = 500 * time.Millisecond
	deadline   = 2 * time.Second
	// watchFlows is how long flows are learned before a hold. Of QUIC only handshakes have to
	// be: later packets tell whose they are. Both sides of a handshake that waits send again
	// within that time, three times their first estimate of 333 ms (RFC 9002, section 6.2.2).
	watchFlows = time.Second
)

// held is a hold.
type held struct {
	target  protect.Target
	flows   protect.Flows // as recognised
	old     []sockdiag.Listener
	earlier []sockdiag.Listener // of servers before the old one that still run
	waiting []*waiting
	places  map[bpf.Place]*sockets

	*bpf.Steering
	renewing sync.WaitGroup
	stop     context.CancelFunc

	linger bool

	setting sync.Mutex // of mode
	mode    bpf.SteerMode

	mu    sync.Mutex // of the following
	stats protect.DatagramStats
	waits protect.Waits
	buf   [headers + maxData]byte // of one datagram
	oob   [256]byte
}

// sockets are those of a place.
type sockets struct {
	bpf.PlaceSockets
	old []sockdiag.Listener
}

// Hold watches the flows if there are some to keep, and then holds.
func (Backend) Hold(ctx context.Context, t protect.Target) (protect.Held, error) {
	h, err := prepare(t)
	if err != nil {
		return nil, err
	}
	if err := h.begin(ctx); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func prepare(t protect.Target) (_ *held, err error) {
	h := &held{target: t, places: make(map[bpf.Place]*sockets), flows: t.Flows, stop: func() {}}
	if h.old, err = t.Serving(); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(h.old, func(l sockdiag.Listener) bool { return l.Device != 0 }) {
		return nil, errors.New("a UDP socket of the server is bound to an interface, from which its datagrams would not come")
	}
	if h.flows == protect.AutoFlows {
		h.flows = recognise(h.old)
	}
	h.stats.Flows = h.flows
	if h.Steering, err = bpf.NewSteering(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if h.flows == protect.ByConnection {
		dir, err := cgroup.MountedV2(proc.Host, "a mounted cgroup2 is necessary to learn the connection ids of QUIC")
		if err != nil {
			return nil, err
		}
		if err := h.ByConnection(dir, protect.Ports(t.Addresses)); err != nil {
			return nil, err
		}
	}
	for _, l := range h.old {
		for _, p := range placesOf(l, t.Addresses) {
			if h.places[p] == nil {
				h.places[p] = &sockets{}
			}
			h.places[p].old = append(h.places[p].old, l)
		}
	}
	if err := h.openWaiting(); err != nil {
		return nil, err
	}
	if err := h.keepOld(); err != nil {
		return nil, err
	}
	return h, h.steer()
}

// keepsFlows reports whether known flows stay with the old server while it runs.
func (h *held) keepsFlows() bool { return h.target.Overlap || h.flows == protect.ByConnection }

// keepOld makes the old server's sockets known, if flows are to stay with them.
func (h *held) keepOld() error {
	if !h.keepsFlows() {
		return nil
	}
	for p, s := range h.places {
		if err := h.newest(p, s); err != nil {
			return err
		}
	}
	h.old = slices.DeleteFunc(h.old, func(l sockdiag.Listener) bool { return slices.ContainsFunc(h.earlier, same(l)) })
	known, err := h.add(h.old, false)
	if err != nil {
		return err
	}
	for _, s := range h.places {
		if s.Old = known[s.old[0].Cookie]; len(s.old) > 1 {
			s.Old = bpf.KernelChooses
		}
	}
	return nil
}

// newest leaves only the sockets of the youngest process in a place. The others belong to
// servers before, which earlier holds have left their flows to. A socket's process is its own
// youngest one: nginx's master opens the sockets of all workers.
func (h *held) newest(p bpf.Place, s *sockets) error {
	if len(s.old) == 1 {
		return nil
	}
	var inodes []uint32
	for _, l := range s.old {
		inodes = append(inodes, l.Inode)
	}
	holders, err := pidfd.Holders(inodes...)
	if err != nil {
		return err
	}
	type process struct {
		pid   int
		began uint64
	}
	of := make(map[uint32]process) // by inode
	for inode, fs := range holders {
		for _, f := range fs {
			if st, err := proc.Host.Stat(f.Pid); err == nil && st.Start >= of[inode].began { // else the process is ending
				of[inode] = process{f.Pid, st.Start}
			}
		}
	}
	sort.Slice(s.old, func(i, j int) bool { return of[s.old[j].Inode].began < of[s.old[i].Inode].began })
	present := of[s.old[0].Inode].pid
	i := slices.IndexFunc(s.old, func(l sockdiag.Listener) bool { return of[l.Inode].pid != present })
	if i < 0 {
		i = len(s.old)
	}
	if i > 1 && h.target.Overlap {
		return fmt.Errorf("the server has several UDP sockets on %v, and which of them has a flow is not known: without --overlap, all new flows can be held", p)
	}
	h.earlier = append(h.earlier, s.old[i:]...)
	s.old = s.old[:i]
	return nil
}

// same returns a function that reports whether a socket is l.
func same(l sockdiag.Listener) func(sockdiag.Listener) bool {
	return func(o sockdiag.Listener) bool { return o.Cookie == l.Cookie }
}

// add makes sockets known, and returns their slots by cookie.
func (h *held) add(ls []sockdiag.Listener, isNew bool) (map[uint64]bpf.Slot, error) {
	owners, err := h.target.Owners(ls)
	if err != nil {
		return nil, err
	}
	known := make(map[uint64]bpf.Slot)
	for _, l := range ls {
		f, ok := owners[l.Inode]
		if !ok {
			return nil, fmt.Errorf("no process here has the UDP socket on %v open", l.Addr)
		}
		fd, err := pidfd.TakeSocket(f, l.Inode)
		if err != nil {
			return nil, err
		}
		known[l.Cookie], err = h.Add(fd)
		unix.Close(fd) // else it would stay open when the server closes it
		if err == nil && h.flows == protect.ByConnection {
			err = h.Server(l.Cookie, isNew)
		}
		if err != nil {
			return nil, err
		}
	}
	return known, nil
}

// steer sets the sockets of all places. Sockets of others on the same ports get theirs.
func (h *held) steer() error {
	d, err := sockdiag.Open()
	if err != nil {
		return err
	}
	defer d.Close()
	for _, port := range protect.Ports(h.target.Addresses) {
		all, err := d.Receivers(port)
		if err != nil {
			return err
		}
		for _, l := range all {
			if !h.isOld(l) && !l.Addr.Addr().IsUnspecified() && h.places[l.Addr] == nil {
				if err := h.Steer(l.Addr, bpf.PlaceSockets{}); err != nil {
					return err
				}
			}
		}
	}
	return h.steerPlaces()
}

func (h *held) steerPlaces() error {
	for p, s := range h.places {
		if err := h.Steer(p, s.PlaceSockets); err != nil {
			return err
		}
	}
	return nil
}

// placesOf returns the places at which l receives datagrams to the addresses.
func placesOf(l sockdiag.Listener, as []protect.Address) (ps []bpf.Place) {
	for _, a := range as {
		switch {
		case !a.Served(l):
		case a.Addr.IsValid():
			ps = append(ps, addrPort(a))
		default:
			ps = append(ps, netip.AddrPortFrom(l.Addr.Addr().Unmap(), l.Addr.Port()))
			if l.Addr.Addr().IsUnspecified() && l.Addr.Addr().Is6() && !l.V6Only {
				ps = append(ps, anyIPv4(a.Port))
			}
		}
	}
	return ps
}

// begin attaches the steering.
func (h *held) begin(ctx context.Context) error {
	if err := h.set(bpf.SteerWatch); err != nil {
		return err
	}
	if err := h.Attach(protect.Ports(h.target.Addresses)); err != nil {
		return err
	}
	renew, stop := context.WithCancel(context.Background())
	h.stop = stop
	h.renewing.Go(func() {
		_ = tasks.Every(renew, renewEvery, func() { _ = h.renew() }) // else it ends at its deadline
	})
	if h.keepsFlows() {
		pause := time.NewTimer(watchFlows)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	return h.set(bpf.SteerHold)
}

func (h *held) set(m bpf.SteerMode) error {
	h.setting.Lock()
	defer h.setting.Unlock()
	h.mode = m
	return h.Set(m, deadline)
}

func (h *held) renew() error {
	h.setting.Lock()
	defer h.setting.Unlock()
	return h.Set(h.mode, deadline)
}

// Stats are known after the release.
func (h *held) Stats() protect.Stats { return h.Datagrams().Stats }

// Datagrams returns what became of the datagrams.
func (h *held) Datagrams() protect.DatagramStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats
}

// Admit refuses: no UDP server is asked.
func (*held) Admit(netip.AddrPort, sockdiag.Listener) (func(), error) {
	return nil, protect.ErrNotAdmitted
}

// Residue is none.
func (*held) Residue() string { return "" }

// Release sends the waiting datagrams again. If the old server runs beside the new one, the
// steering stays; see Linger.
func (h *held) Release(ctx context.Context) error {
	now, err := h.target.Listeners()
	if err == nil {
		h.linger, err = h.serve(now)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Stays = h.linger
	return errors.Join(err, h.sendAll(ctx, len(now) > 0))
}

// open lets all datagrams through to the servers.
func (h *held) open() error {
	if h.linger {
		return h.set(bpf.SteerServe)
	}
	h.end()
	h.Steering.Close()
	return nil
}

// isOld reports whether l is of the old server, or of one before. While one of them runs, the
// kernel alone would give it new flows too.
func (h *held) isOld(l sockdiag.Listener) bool {
	return slices.ContainsFunc(h.old, same(l)) || slices.ContainsFunc(h.earlier, same(l))
}

// serve gives new flows to the new server, if the old one runs as well.
func (h *held) serve(now []sockdiag.Listener) (bool, error) {
	var fresh []sockdiag.Listener
	runs := false
	for _, l := range now {
		if h.isOld(l) {
			runs = true
		} else {
			fresh = append(fresh, l)
		}
	}
	if !runs || len(fresh) == 0 || !h.keepsFlows() {
		return false, nil
	}
	slots, err := h.add(fresh, true)
	if err != nil {
		return false, fmt.Errorf("new flows do not go to the new server only: %w", err)
	}
	for _, l := range fresh {
		for _, p := range placesOf(l, h.target.Addresses) {
			s := h.places[p]
			switch {
			case s == nil:
			case s.New != 0:
				return false, fmt.Errorf("new flows do not go to the new server only: it has several UDP sockets on %v", p)
			default:
				s.New = slots[l.Cookie]
			}
		}
	}
	return true, h.steerPlaces()
}

// lingerLook is the interval at which the old server's sockets are looked for.
const lingerLook = 50 * time.Millisecond

// Linger returns a function that keeps the flows of the old server with it until its sockets
// are closed, or for as long as the target says. nil: no flow is kept.
func (h *held) Linger() func() {
	if !h.linger {
		return nil
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), h.target.For)
		defer cancel()
		_ = tasks.Every(ctx, lingerLook, func() { // it ends with ctx
			now, err := h.target.Listeners()
			if err == nil && !slices.ContainsFunc(now, h.isOld) {
				cancel()
			}
		})
		h.close()
	}
}

// end ends the renewing.
func (h *held) end() {
	h.stop()
	h.renewing.Wait()
}

func (h *held) close() {
	h.end()
	h.Steering.Close()
	for _, w := range h.waiting {
		w.close()
	}
}
