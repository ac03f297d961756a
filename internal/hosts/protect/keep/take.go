package keep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
	"holdfast/internal/platform/tasks"
)

const (
	// quiet is how long the old server may not have sent anything on a connection that is
	// between two requests. Pauses in an answer, and between the answers to pipelined
	// requests, have to be shorter.
	quiet = 50 * time.Millisecond
	// working is how long that has to be while a thread of the server's process runs, waits
	// for a processor, or for a disk: it may be working on a pipelined request.
	working = 10 * quiet
	// lease is for how long the gate closes at a time. A relay that is killed thereby keeps
	// requests from the old server for at most so long.
	lease = 2 * time.Second
	// maxKept limits the connections of one relay. One takes about 40 kB.
	maxKept = 4096
	// maxSearches limits how often the process of a socket is searched.
	maxSearches = 3
)

// taker takes connections from the old server. It is for one goroutine.
type taker struct {
	spec  Spec
	ports []uint16
	diag  *sockdiag.Diag
	gate  *bpf.Gate
	log   *slog.Logger

	conns  map[uint32]*conn // by inode
	owners []int            // processes of the server
	relays map[int]bool     // by pid: whether it is a relay
	shut   time.Time        // when the gate closed first; zero: it is open
	lost   map[Reason]int

	open     context.CancelFunc // ends renewing; nil: the gate never closed
	renewing sync.WaitGroup
}

// conn is one connection of the old server.
type conn struct {
	inode       uint32
	local, peer netip.AddrPort
	owner       pidfd.OpenFile
	cookie      uint64
	seen        time.Time     // first
	quiet       time.Duration // needed; more after an error
	searches    int
	skip        Reason // never to be taken; "": may be
	relayed     bool   // another relay has it
	busy        bool   // it had an unanswered request when it was last looked at

	fd     int // the copy; -1: it is not taken
	at     counters
	orphan bool // the old server has closed it
}

// counters are the bytes that a connection has carried.
type counters struct{ in, out uint64 }

func (t *taker) wanted(c sockdiag.Conn) bool {
	return slices.ContainsFunc(t.spec.Addresses, func(a Address) bool { return a.serves(c.Local) })
}

// list returns the established connections of the server, by inode.
func (t *taker) list() (map[uint32]sockdiag.Conn, error) {
	now := make(map[uint32]sockdiag.Conn)
	for _, port := range t.ports {
		cs, err := t.diag.Conns(port, sockdiag.Established)
		if err != nil {
			return nil, err
		}
		for _, c := range cs {
			if c.Inode != 0 && t.wanted(c) {
				now[c.Inode] = c
			}
		}
	}
	return now, nil
}

// look lists the connections, puts the gate on new ones, and takes those that are between
// two requests if the gate is closed. It returns how many have an unanswered request.
func (t *taker) look() (busy int, err error) {
	now, err := t.list()
	if err != nil {
		return 0, err
	}
	for inode, c := range t.conns {
		if _, ok := now[inode]; !ok && c.fd < 0 {
			t.forget(c)
		}
	}
	t.meet(now)
	if t.shut.IsZero() {
		return 0, nil
	}
	works := make(map[int]bool) // by pid
	for inode, d := range now {
		c := t.conns[inode]
		if c == nil || c.skip != "" || c.relayed || c.fd >= 0 {
			continue
		}
		if _, ok := works[c.owner.Pid]; !ok {
			works[c.owner.Pid] = runs(c.owner.Pid)
		}
		needed := c.quiet
		if works[c.owner.Pid] {
			needed = max(needed, working)
		}
		if c.busy = c.cookie == 0 || !t.idle(c, d, needed) || !t.take(c); c.busy {
			busy++
		}
	}
	return busy, nil
}

// forget forgets a connection that has ended.
func (t *taker) forget(c *conn) {
	if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.owner.Pid)); err != nil && c.busy {
		t.lost[Busy]++ // with its process
	}
	delete(t.conns, c.inode)
}

// shutGate closes the gate until openGate.
func (t *taker) shutGate() error {
	if _, err := t.look(); err != nil {
		return err
	}
	if err := t.gate.Shut(lease); err != nil {
		return err
	}
	t.shut = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	t.open = cancel
	t.renewing.Go(func() { _ = tasks.Every(ctx, lease/4, func() { _ = t.gate.Shut(lease) }) })
	return nil
}

// openGate opens the gate.
func (t *taker) openGate() {
	if t.open != nil {
		t.open()
		t.renewing.Wait()
	}
	if err := t.gate.Shut(0); err != nil { // it opens after the lease
		t.log.Warn("protect: " + err.Error())
	}
}

// meet finds the processes of new connections, and puts the gate on them.
func (t *taker) meet(now map[uint32]sockdiag.Conn) {
	var unknown []uint32
	for inode, d := range now {
		c := t.conns[inode]
		if c == nil {
			c = &conn{inode: inode, local: unmap(d.Local), peer: unmap(d.Peer), seen: time.Now(), quiet: quiet, fd: -1}
			t.conns[inode] = c
		}
		if c.cookie == 0 && c.skip == "" && !c.relayed {
			unknown = append(unknown, inode)
		}
	}
	if len(unknown) == 0 {
		return
	}
	found, err := pidfd.FindSockets(t.owners, unknown...)
	if err != nil {
		t.log.Warn("protect: find the processes of connections", "err", err)
	}
	for _, inode := range unknown {
		c := t.conns[inode]
		at, ok := found[inode]
		if !ok {
			if c.searches++; c.searches >= maxSearches {
				c.skip = NotTaken
			}
			continue
		}
		c.owner = at
		if c.relayed = t.isRelay(at.Pid); c.relayed {
			continue
		}
		if !slices.Contains(t.owners, at.Pid) {
			t.owners = append(t.owners, at.Pid)
		}
		c.skip = t.watch(c)
	}
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func (t *taker) isRelay(pid int) bool {
	is, ok := t.relays[pid]
	if !ok {
		is = isRelay(pid)
		t.relays[pid] = is
	}
	return is
}

// watch puts the gate on a connection. It returns why the connection cannot be kept.
func (t *taker) watch(c *conn) Reason {
	if len(t.conns) > maxKept {
		return TooMany
	}
	if t.spec.Clients == Local && !isLocal(c.peer.Addr()) {
		return Remote
	}
	fd, err := pidfd.TakeSocket(c.owner, c.inode)
	if errors.Is(err, pidfd.ErrGone) || errors.Is(err, os.ErrNotExist) {
		return "" // it is closed, or moves to another process
	}
	if err != nil {
		t.log.Warn("protect: a connection is not kept", "client", c.peer, "err", err)
		return NotTaken
	}
	defer unix.Close(fd)
	if err := plain(fd); err != nil {
		t.log.Warn("protect: a connection is not kept", "client", c.peer, "err", err)
		return NotTaken
	}
	if c.cookie, err = t.gate.Attach(fd); err != nil {
		t.log.Warn("protect: a connection is not kept", "client", c.peer, "err", err)
		return NotTaken
	}
	return ""
}

// plain returns an error if a socket is no plain TCP socket, or would keep the new server
// from binding its port.
func plain(fd int) error {
	if p, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || p != unix.IPPROTO_TCP {
		return fmt.Errorf("it is Multipath TCP (protocol %d, %v)", p, err)
	}
	if ulp, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP); err == nil && ulp != "" {
		return fmt.Errorf("the kernel handles %s on it", ulp)
	}
	if reuse, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR); err != nil || reuse == 0 {
		return errors.New("the server does not set SO_REUSEADDR, so that a new one could not bind its port")
	}
	return nil
}

// runs reports whether a thread of a process does not sleep (proc_pid_stat(5), state).
func runs(pid int) bool {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return false // it has ended
	}
	for _, thread := range threads {
		b, err := kfile.Read(dir+"/"+thread.Name()+"/stat", 4096)
		if err != nil {
			continue
		}
		if s, err := proc.ParseStat(b); err == nil && (s.State == 'R' || s.State == 'D') {
			return true
		}
	}
	return false
}

// idle reports whether a connection is between two requests. The gate is closed: no further
// request reaches the server.
func (t *taker) idle(c *conn, d sockdiag.Conn, needed time.Duration) bool {
	if d.Unread > 0 || d.Unsent > 0 {
		return false
	}
	s, err := t.gate.State(c.cookie)
	if err != nil {
		return false
	}
	return between(d, s, time.Since(maxTime(t.shut, c.seen)), needed)
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// between reports whether the last data of a connection with empty queues was an answer that
// is complete, as far as can be known. shut is for how long no request could come in.
func between(d sockdiag.Conn, s bpf.GateState, shut, quiet time.Duration) bool {
	switch {
	case s.Data > 0: // the order is known by sequence numbers
		return s.Answered() && d.SinceSent >= quiet
	case !d.HasReceived: // a fresh one
		return shut >= quiet
	}
	// A request that came in before the watch, in the same tick of the kernel's clock as the
	// answer before it, and is not answered since, looks like an idle connection.
	return d.SegmentsSent > 0 && d.SinceReceived >= d.SinceSent && d.SinceSent >= quiet
}

// take makes the copy of an idle connection, unless it is busy after all.
func (t *taker) take(c *conn) bool {
	fd, err := pidfd.TakeSocket(c.owner, c.inode)
	if err != nil {
		return false
	}
	at, err := calm(fd)
	if err != nil {
		unix.Close(fd)
		return false
	}
	c.fd, c.at = fd, at
	return true
}

// errBusy reports that a connection is not between two requests.
var errBusy = errors.New("it is not idle")

// calm returns what an established connection with empty queues has carried.
func calm(fd int) (counters, error) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return counters{}, err
	}
	unread, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return counters{}, err
	}
	unsent, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
	if err != nil {
		return counters{}, err
	}
	if info.State != sockdiag.Established || unread > 0 || unsent > 0 {
		return counters{}, errBusy
	}
	return counters{info.Bytes_received, info.Bytes_sent}, nil
}

// check finds the taken connections that the old server has closed or used since.
func (t *taker) check() {
	for _, c := range t.conns {
		if c.fd < 0 || c.orphan {
			continue
		}
		open := has(c.owner, c.inode)
		at, err := calm(c.fd)
		switch {
		case err == nil && at == c.at && !open:
			t.adopt(c)
		case err == nil && at == c.at:
		case open: // it was not idle: the server has sent more of an answer
			c.quiet *= 4
			t.drop(c)
		default: // it ended in the middle of an answer, or the client has closed it
			t.drop(c)
			c.busy = err == nil
			t.forget(c)
		}
	}
}

// has reports whether the process still has the socket open at that descriptor.
func has(f pidfd.OpenFile, inode uint32) bool {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", f.Pid, f.FD))
	return err == nil && to == fmt.Sprintf("socket:[%d]", inode)
}

// adopt opens the gate of a connection that the old server has closed: from now on only the
// relay can read its requests.
func (t *taker) adopt(c *conn) {
	c.orphan = true
	if err := t.gate.Detach(c.fd, c.cookie); err != nil {
		t.log.Warn("protect: keep a connection", "client", c.peer, "err", err)
	}
	// A server may have set these. They would reset the connection when it closes, or delay
	// what is sent or received.
	_ = unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_CORK, 0)
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
}

// drop closes the copy.
func (t *taker) drop(c *conn) {
	unix.Close(c.fd)
	c.fd = -1
}

// unresolved reports whether a connection may still be taken.
func (t *taker) unresolved() bool {
	for _, c := range t.conns {
		if c.fd < 0 && c.skip == "" && !c.relayed {
			return true
		}
	}
	return false
}

// finish opens the gate, gives the connections of a running server back, and returns the
// others.
func (t *taker) finish() (orphans []*conn, r Report) {
	t.check()
	r = Report{Lost: t.lost, For: t.spec.For}
	for _, c := range t.conns {
		switch {
		case c.relayed:
		case c.orphan:
			orphans = append(orphans, c)
		case has(c.owner, c.inode):
			r.Stayed++
		case c.skip != "":
			r.Lost[c.skip]++
		case c.busy:
			r.Lost[Busy]++
		}
	}
	r.Kept = len(orphans)
	t.undo(false)
	return orphans, r
}

// undo opens the gate and removes it from all connections that are open. It closes all
// copies, but not those of orphans unless all is true.
func (t *taker) undo(all bool) {
	t.openGate()
	for _, c := range t.conns {
		if c.orphan {
			if all {
				t.drop(c)
			}
			continue
		}
		if c.fd < 0 && c.cookie != 0 {
			if fd, err := pidfd.TakeSocket(c.owner, c.inode); err == nil {
				c.fd = fd
			}
		}
		if c.fd >= 0 {
			if err := t.gate.Detach(c.fd, c.cookie); err != nil { // it stays, and is open
				t.log.Warn("protect: " + err.Error())
			}
			t.drop(c)
		}
	}
}
