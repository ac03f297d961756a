package supervise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/history"
	"holdfast/internal/hosts/protect/park"
	"holdfast/internal/platform/linux/listenfd"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
)

// spare is the spare beside one of the server's listeners.
type spare struct {
	*park.Spare
	locks  []*protect.Lock // of the port
	stored string          // its name with the service manager
	inode  uint32
	cookie uint64 // of the server's listener; 0: it is gone
	held   int    // the most connections that waited at once in this outage
	first  time.Time
	since  time.Time // of the outage
}

// Names of stored sockets begin with one of these, by HadReuseport. The number that follows
// makes each name occur once.
const (
	storedPlain     = "holdfast-spare-"
	storedReuseport = "holdfast-reuseport-"
)

// Stored reports whether the service manager has a socket of this name from Run.
func Stored(name string) bool {
	return strings.HasPrefix(name, storedPlain) || strings.HasPrefix(name, storedReuseport)
}

// look finds the server's listeners, and gives each a spare.
func (s *supervisor) look() error {
	ls, err := s.diag.Listeners(0)
	if err != nil {
		return err
	}
	now := time.Now()
	alive := make(map[uint64]bool, len(ls))
	for _, l := range ls {
		alive[l.Cookie] = true
	}
	maps.DeleteFunc(s.foreign, func(cookie uint64, _ bool) bool { return !alive[cookie] })
	for _, p := range s.places {
		p.count(now)
		if p.cookie != 0 && !alive[p.cookie] {
			p.cookie, p.since = 0, now
			s.down(now)
			err = errors.Join(err, p.Hold())
			s.prepare() // for a child that the server starts in place of the one that has ended
		}
	}
	if s.server != nil && !s.stop {
		err = errors.Join(err, s.serve(ls, now))
	}
	s.judge(now)
	return err
}

// down begins an outage, unless one has begun.
func (s *supervisor) down(now time.Time) {
	if s.outage.IsZero() {
		s.outage, s.gaveUp = now, false
	}
}

// judge ends an outage when the server listens at all its places.
func (s *supervisor) judge(now time.Time) {
	missing := func(p *spare) bool { return p.cookie == 0 }
	for _, p := range s.places {
		if missing(p) {
			return
		}
	}
	if s.outage.IsZero() || s.server == nil || len(s.places) == 0 {
		return
	}
	s.outage, s.up, s.gaveUp = time.Time{}, now, false
	if s.hook != nil {
		_ = s.hook.Close()
		s.hook = nil
	}
	if !s.said && s.Ready != nil {
		s.Ready()
	}
	s.said = true
	s.Log.Info("run: the server listens", "pid", s.server.cmd.Process.Pid)
}

// serve gives the listeners of the server their connections, and new ones a spare.
func (s *supervisor) serve(ls []sockdiag.Listener, now time.Time) (err error) {
	for _, l := range ls {
		p := s.places[park.PlaceOf(l)]
		mine := slices.ContainsFunc(s.spares(), func(p *spare) bool { return p.inode == l.Inode })
		switch {
		case mine || s.foreign[l.Cookie]:
			continue
		case p != nil && p.cookie != 0 && (p.cookie != l.Cookie || p.Waiting() == 0):
			continue
		}
		f, ok := s.owner(l)
		switch {
		case !ok:
		case p != nil:
			err = errors.Join(err, s.resume(p, l, f, now))
		default:
			err = errors.Join(err, s.add(l, f, ls))
		}
	}
	return err
}

func (s *supervisor) spares() (all []*spare) {
	for _, p := range s.places {
		all = append(all, p)
	}
	return all
}

// owner returns the process of the server that has a listener open. It notes a listener
// that belongs to other processes.
func (s *supervisor) owner(l sockdiag.Listener) (pidfd.OpenFile, bool) {
	pid := s.server.cmd.Process.Pid
	found, err := pidfd.FindSockets([]int{pid}, l.Inode)
	f, ok := found[l.Inode]
	if err != nil || !ok {
		return f, false // it has just been closed, or opened: see the next look
	}
	up, err := proc.Host.Ancestors(f.Pid)
	if f.Pid != pid && (err != nil || !slices.Contains(up, pid)) {
		s.foreign[l.Cookie] = err == nil
		return f, false
	}
	return f, true
}

// add gives a listener a spare.
func (s *supervisor) add(l sockdiag.Listener, f pidfd.OpenFile, ls []sockdiag.Listener) error {
	alike := 0
	for _, other := range ls {
		if park.PlaceOf(other) == park.PlaceOf(l) {
			alike++
		}
	}
	if alike > 1 || l.MPTCP {
		s.foreign[l.Cookie] = true
		why := "the server has several listeners there"
		if l.MPTCP {
			why = "it is a Multipath TCP listener"
		}
		s.Log.Warn("run: connections are not held in a crash", "address", l.Addr.String(), "because", why)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	locks, err := protect.LockPorts(ctx, s.LockDir, "", []uint16{l.Addr.Port()})
	if errors.Is(err, protect.ErrTaken) {
		if s.locked(l.Addr.Port()) {
			locks, err = nil, nil
		} else {
			return nil // a protect in progress: again later
		}
	}
	if err != nil {
		return err
	}
	sp, err := park.NewSpare(l, f)
	if err != nil {
		protect.Unlock(locks)
		if errors.Is(err, pidfd.ErrGone) {
			return nil
		}
		s.foreign[l.Cookie] = true // said once
		return fmt.Errorf("connections to %v are not held in a crash: %w", l.Addr, err)
	}
	p := &spare{Spare: sp, locks: locks, cookie: l.Cookie}
	s.places[park.PlaceOf(l)] = p
	return s.opened(p, sp.FD())
}

// locked reports whether another spare has the lock of a port.
func (s *supervisor) locked(port uint16) bool {
	for at := range s.places {
		if at.Port() == port {
			return true
		}
	}
	return false
}

// opened leaves a parking socket with the service manager, and knows it from then on.
func (s *supervisor) opened(p *spare, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	p.inode = uint32(st.Ino)
	old := p.stored
	if s.Restarts == nil {
		return nil
	}
	prefix := storedPlain
	if p.HadReuseport() {
		prefix = storedReuseport
	}
	p.stored = fmt.Sprint(prefix, st.Ino)
	err := listenfd.Store(listenfd.Wrap(p.stored, fd))
	if old != "" {
		err = errors.Join(err, listenfd.Unstore(old))
	}
	return err
}

// resume gives a listener the connections that wait for it.
func (s *supervisor) resume(p *spare, l sockdiag.Listener, f pidfd.OpenFile, now time.Time) error {
	p.count(now)
	var opened error
	err := p.Serve(l, f, func(fd int) { opened = s.opened(p, fd) })
	if errors.Is(err, pidfd.ErrGone) {
		return nil // it has crashed again
	}
	if err == nil && p.cookie == 0 {
		s.record(p, now, protect.NewListens)
		p.cookie = l.Cookie
	}
	return errors.Join(err, opened)
}

// count counts the connections that wait.
func (p *spare) count(now time.Time) {
	n := p.Waiting()
	if n > 0 && p.first.IsZero() {
		p.first = now
	}
	p.held = max(p.held, n)
}

// record adds an outage to the history of holds.
func (s *supervisor) record(p *spare, now time.Time, why protect.Reason) {
	h := history.Hold{At: now.UTC(), Program: filepath.Base(s.Command[0]), Backend: protect.Park, Took: now.Sub(p.since), Held: p.held, Reason: why}
	for at, other := range s.places {
		if other == p {
			h.Ports = []uint16{at.Port()}
		}
	}
	if !p.first.IsZero() {
		h.Longest = now.Sub(p.first) + soon
	}
	p.held, p.first = 0, time.Time{}
	if err := history.Add(s.LockDir, h); err != nil {
		s.Log.Warn("run: " + err.Error())
	}
	s.Log.Info("run: an outage is over", "port", h.Ports, "because", string(why), "took", h.Took, "held", h.Held, "longest_wait", h.Longest)
}

// prepare lets the next server, or the next listener of the present one, bind beside the spares.
func (s *supervisor) prepare() {
	if s.hook != nil || len(s.places) == 0 {
		return
	}
	var ports []uint16
	for at := range s.places {
		ports = append(ports, at.Port())
	}
	hook, err := park.HookBind(ports, s.spares()[0].Spare)
	if err != nil {
		s.Log.Warn("run: a server that does not set SO_REUSEPORT cannot bind", "err", err)
		s.dropDown() // else it could never start
		return
	}
	s.hook = closer{hook.Close}
}

type closer struct{ close func() }

func (c closer) Close() error { c.close(); return nil }

// adopt takes over a stored spare. ls are the present listeners.
func (s *supervisor) adopt(stored *listenfd.Socket, ls []sockdiag.Listener) error {
	var st unix.Stat_t
	if err := unix.Fstat(stored.FD(), &st); err != nil {
		return err
	}
	i := slices.IndexFunc(ls, func(l sockdiag.Listener) bool { return l.Inode == uint32(st.Ino) })
	if i < 0 {
		return errors.Join(fmt.Errorf("socket %s does not listen any more", stored.Name), listenfd.Unstore(stored.Name))
	}
	l := ls[i]
	if s.places[park.PlaceOf(l)] != nil { // of a process that was killed while it replaced one
		err := listenfd.Unstore(stored.Name)
		return errors.Join(err, unix.Shutdown(stored.FD(), unix.SHUT_RD))
	}
	sp, err := park.AdoptSpare(stored.FD(), l, strings.HasPrefix(stored.Name, storedReuseport))
	if err != nil {
		return errors.Join(err, listenfd.Unstore(stored.Name), unix.Shutdown(stored.FD(), unix.SHUT_RD))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	locks, err := protect.LockPorts(ctx, s.LockDir, "", []uint16{l.Addr.Port()})
	if err != nil && !s.locked(l.Addr.Port()) {
		s.Log.Warn("run: lock a port", "err", err)
	}
	s.places[park.PlaceOf(l)] = &spare{Spare: sp, locks: locks, stored: stored.Name, inode: uint32(st.Ino), since: time.Now()}
	s.Log.Info("run: a spare is taken over", "address", l.Addr.String(), "waiting", sp.Waiting())
	return nil
}

// dropDown ends the spares of the places at which no server listens: the connections that
// wait there are refused.
func (s *supervisor) dropDown() {
	for at, p := range s.places {
		if p.cookie == 0 {
			s.record(p, time.Now(), protect.TimeUp)
			s.drop(at, p, nil)
		}
	}
	if len(s.places) == 0 && s.hook != nil {
		_ = s.hook.Close()
		s.hook = nil
	}
}

// end ends all spares. keep leaves them with the service manager.
func (s *supervisor) end(keep bool) {
	if s.hook != nil {
		_ = s.hook.Close()
		s.hook = nil
	}
	if keep {
		for _, p := range s.places {
			protect.Unlock(p.locks)
		}
		return
	}
	ls, err := s.diag.Listeners(0)
	if err != nil {
		s.Log.Warn("run: look for the server's sockets", "err", err)
	}
	for at, p := range s.places {
		i := slices.IndexFunc(ls, func(l sockdiag.Listener) bool { return p.cookie != 0 && l.Cookie == p.cookie })
		if i < 0 {
			s.drop(at, p, nil)
		} else {
			s.drop(at, p, &ls[i])
		}
	}
}

// drop ends a spare.
func (s *supervisor) drop(at park.Place, p *spare, l *sockdiag.Listener) {
	var f pidfd.OpenFile
	if l != nil && s.server != nil {
		f, _ = s.owner(*l) // without it the connections that wait are reset
	}
	err := p.End(l, f)
	if p.stored != "" {
		err = errors.Join(err, listenfd.Unstore(p.stored))
	}
	if err != nil && !errors.Is(err, pidfd.ErrGone) {
		s.Log.Warn("run: end a spare", "address", at.Address().String(), "err", err)
	}
	protect.Unlock(p.locks)
	delete(s.places, at)
}
