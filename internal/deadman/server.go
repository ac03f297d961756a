package deadman

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/kill"
	"holdfast/internal/linux/boottime"
	"holdfast/internal/linux/standby"
)

const (
	// lonely is how long a deadman with nothing to hold and no agent stays.
	// The next agent wants to hear of what it did: then it stays longer.
	lonely       = 30 * time.Second
	lonelyUntold = time.Hour
	// maxConns bounds how many are connected at once: one controls.
	maxConns = 8
	// maxTurn is how many messages of one connection are answered before
	// others, and the deadline, have their turn.
	maxTurn = 1024
)

// server is the deadman's side. One goroutine owns it and never waits for
// anything but all of its descriptors at once; killing goes on beside it.
type server struct {
	dir      string
	log      *slog.Logger
	opener   *kill.Opener
	listener int
	timer    *boottime.Timer
	wake     int         // eventfd: a kill has ended, or a SIGTERM came
	leaving  atomic.Bool // SIGTERM came

	conns      []int // all that are connected, oldest first
	controller int   // the one that said hello last, -1 for none
	alone      boottime.Instant

	deadline boottime.Instant // 0: none yet
	held     map[string]*held
	expected map[string]string // name by id
	firing   firing
	ended    bool // told to stand down
	buf      [maxMessage + 1]byte
}

// held is a container in a deadman's hands.
type held struct {
	container
	target *kill.Target
}

func newServer(dir string, log *slog.Logger) (*server, error) {
	s := &server{
		dir: dir, log: log, controller: -1, alone: boottime.Now(), listener: -1, wake: -1,
		held: make(map[string]*held), expected: make(map[string]string),
	}
	s.firing.reports = make(chan holdfast.KillReport, 1)
	var err error
	if err = s.newOpener(); err != nil {
		return nil, err
	}
	if s.timer, err = boottime.NewTimer(); err != nil {
		return nil, err
	}
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	s.prepare()
	if s.listener, err = listen(dir, socketName(os.Getpid())); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare gets what it will need while it can still be had: memory, descriptors.
func (s *server) prepare() {
	if err := standby.LockMemory(); err != nil {
		s.log.Warn("deadman: its memory is not locked", "err", err)
	}
	// A descriptor for each container, and while they are killed two.
	const files = 3 * maxContainers
	limit := unix.Rlimit{Cur: files, Max: files}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil || now.Cur >= files {
		return
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		s.log.Warn("deadman: the limit of descriptors stays as it is", "limit", now.Cur, "err", err)
	}
}

// newOpener looks at this process and the host's control groups anew. Which
// processes are above this one changes: it outlives its starter.
func (s *server) newOpener() error {
	o, err := kill.NewOpener()
	if err != nil {
		return err
	}
	o.NoShims = true // nobody stops the engine here
	s.opener = o
	return nil
}

func (s *server) close() {
	for _, fd := range append(slices.Clone(s.conns), s.listener, s.wake) {
		unix.Close(fd)
	}
	_ = os.Remove(filepath.Join(s.dir, socketName(os.Getpid()))) // the next agent would find that nobody answers there
}

// watch waits for SIGTERM: the end of the host, as a rule.
func (s *server) watch(term <-chan os.Signal) {
	for range term {
		s.leaving.Store(true)
		s.poke()
	}
}

// poke makes run look around. Any goroutine.
func (s *server) poke() {
	one := [8]byte{1} // in the host's order any non-zero number will do
	_, _ = unix.Write(s.wake, one[:])
}

// run serves until there is nothing more to do.
func (s *server) run() error {
	for !s.mayEnd() {
		fds := []unix.PollFd{
			{Fd: int32(s.wake), Events: unix.POLLIN}, {Fd: int32(s.timer.FD()), Events: unix.POLLIN}, {Fd: int32(s.listener), Events: unix.POLLIN},
		}
		for _, c := range s.conns {
			fds = append(fds, unix.PollFd{Fd: int32(c), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(fds, s.pause()); err != nil && err != unix.EINTR {
			return fmt.Errorf("poll: %w", err)
		}
		if fds[0].Revents != 0 {
			var n [8]byte
			_, _ = unix.Read(s.wake, n[:])
		}
		// First what agents have to say: where everything stood still for a
		// while, an extension may lie there beside the old deadline.
		if fds[2].Revents != 0 {
			s.accept()
		}
		for _, fd := range fds[3:] {
			if fd.Revents != 0 {
				s.serve(int(fd.Fd))
			}
		}
		s.act()
	}
	return nil
}

// pause is how long run may sleep, in milliseconds.
func (s *server) pause() int {
	next := s.nextAct()
	if s.controller < 0 && s.idle() {
		next = sooner(next, s.stays())
	}
	if next == 0 {
		return -1
	}
	return int(max(next.Until().Milliseconds()+1, 0))
}

// sooner is the earlier of two moments, of which 0 is never.
func sooner(a, b boottime.Instant) boottime.Instant {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// stays is until when it waits for an agent, with nothing to hold.
func (s *server) stays() boottime.Instant {
	if s.firing.fired != nil {
		return s.alone.Add(lonelyUntold)
	}
	return s.alone.Add(lonely)
}

// idle reports whether there is nothing to hold.
func (s *server) idle() bool {
	return len(s.held) == 0 && len(s.expected) == 0 && !s.firing.under
}

// mayEnd reports whether nobody needs this process any more.
func (s *server) mayEnd() bool {
	switch {
	case s.ended:
		return true
	case s.leaving.Load():
		// The host ends, and must not have to wait. What still runs is
		// waited for until the deadline at the longest.
		return s.idle() || s.overdue() && len(s.held) == 0 && !s.firing.under && s.firing.searched
	}
	return s.controller < 0 && s.idle() && s.stays().Until() <= 0
}

// accept takes a connection of a process of the same user.
func (s *server) accept() {
	fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err == unix.EMFILE || err == unix.ENFILE { // it stays there, and poll(2) would return at once
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return // it has gone away, or asks again
	}
	if _, err := peerOf(fd); err != nil {
		s.log.Warn("deadman: refused a connection", "err", err)
		unix.Close(fd)
		return
	}
	if len(s.conns) == maxConns {
		for _, c := range s.conns {
			if c != s.controller {
				s.drop(c)
				break
			}
		}
	}
	s.conns = append(s.conns, fd)
}

// drop ends a connection. That the agent is gone changes nothing else.
func (s *server) drop(conn int) {
	s.conns = slices.DeleteFunc(s.conns, func(c int) bool { return c == conn })
	unix.Close(conn)
	if s.controller == conn {
		s.controller, s.alone = -1, boottime.Now()
	}
}

// serve answers what a connection has sent.
func (s *server) serve(conn int) {
	for range maxTurn {
		if !slices.Contains(s.conns, conn) || s.ended {
			return
		}
		n, err := unix.Read(conn, s.buf[:])
		switch {
		case err == unix.EAGAIN:
			return
		case err == unix.EINTR:
			continue
		case err != nil || n == 0:
			s.drop(conn)
			return
		}
		if err := s.take(conn, s.buf[:n]); err != nil {
			s.log.Warn("deadman: ended a connection", "err", err)
			s.drop(conn)
		}
	}
}

// take does what one message asks and answers. An error ends the connection.
func (s *server) take(conn int, message []byte) error {
	if len(message) > maxMessage {
		return errors.New("a message is too long")
	}
	r, err := parseRequest(message)
	if err != nil {
		return err
	}
	if r.Op == opHello {
		s.hello(conn)
	} else if conn != s.controller {
		return fmt.Errorf("%q without a hello", r.Op)
	}
	answer := reply{Seq: r.Seq}
	if err := r.check(); err != nil {
		answer.Error = err.Error()
	} else {
		s.answer(r, &answer)
	}
	return send(conn, answer)
}

// hello makes a connection the one that controls.
func (s *server) hello(conn int) {
	old := s.controller
	s.controller = conn
	if old >= 0 && old != conn {
		s.log.Warn("deadman: another agent takes over")
		_ = send(old, reply{}) // it may be gone
		s.drop(old)
	}
}

// send never waits: who does not read loses its connection.
func send(conn int, r reply) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := unix.Sendto(conn, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// answer does what a request asks.
func (s *server) answer(r request, a *reply) {
	var err error
	switch r.Op {
	case opHello:
		s.prune()
		a.Status = &status{Version: protocol, Deadline: s.deadline, Held: len(s.held), Expected: len(s.expected)}
		a.Fired = s.firing.take()
	case opList:
		a.List = s.list(r.From)
	case opStandDown:
		s.prune()
		if r.Moved || s.idle() {
			s.ended = true
		} else {
			err = ErrHolds
		}
	case opExpect:
		err = s.expect(*r.Container, r.Moved)
	case opHold:
		err = s.hold(*r.Container)
	case opForget:
		s.forget(r.IDs)
	case opExtend:
		err = s.extend(r.Deadline)
		a.Fired = s.firing.take()
	}
	if err != nil {
		a.Error, a.Code = err.Error(), codeOf(err)
	}
}

// list is a batch of all containers, in the order of their ids.
func (s *server) list(from int) []container {
	all := make([]container, 0, len(s.held)+len(s.expected))
	for _, h := range s.held {
		all = append(all, h.container)
	}
	for id, name := range s.expected {
		all = append(all, container{ID: id, Name: name})
	}
	slices.SortFunc(all, func(a, b container) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	from = min(from, len(all))
	return all[from:min(from+batch, len(all))]
}

// expect notes a container that is about to start, or that was noted elsewhere
// and moved here.
func (s *server) expect(c container, moved bool) error {
	switch {
	case s.deadline == 0 || s.overdue() && !moved:
		return ErrOverdue
	case s.held[c.ID] != nil:
		return nil
	case s.full():
		return errFull
	}
	s.expected[c.ID] = c.Name
	return nil
}

var errFull = fmt.Errorf("%d containers are too many", maxContainers)

func (s *server) full() bool { return len(s.expected)+len(s.held) >= maxContainers }

// hold takes hold of a running container. One that cannot be held stays
// expected, or becomes so: whatever is in its control groups dies by that. That
// its init is dead by now is no error.
func (s *server) hold(c container) error {
	_, known := s.expected[c.ID]
	switch h := s.held[c.ID]; {
	case s.deadline == 0:
		return ErrOverdue
	case h != nil && h.Pid == c.Pid && h.Start == c.Start:
		return nil
	case h == nil && !known && s.full():
		return errFull
	}
	t, err := s.open(c)
	if err != nil {
		s.expected[c.ID] = c.Name
		if errors.Is(err, kill.ErrGone) {
			return nil
		}
		return err
	}
	s.forget([]string{c.ID})
	s.held[c.ID] = &held{c, t}
	return nil
}

// open takes hold of the very process that the agent means.
func (s *server) open(c container) (*kill.Target, error) {
	t, err := s.opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrProtected) { // by what was above this process once?
		if err = s.newOpener(); err == nil {
			t, err = s.opener.Open(c.ID, c.Name, c.Pid)
		}
	}
	if err != nil {
		return nil, err
	}
	if t.Start() != c.Start {
		t.Close()
		return nil, fmt.Errorf("container %.12s: process %d is another one now: %w", c.ID, c.Pid, kill.ErrGone)
	}
	return t, nil
}

// forget lets go of containers.
func (s *server) forget(ids []string) {
	for _, id := range ids {
		if h := s.held[id]; h != nil {
			s.firing.letGo(h.target)
			delete(s.held, id)
		}
		delete(s.expected, id)
	}
}

// prune lets go of containers that are dead: their agent may have died before it
// could say so.
func (s *server) prune() {
	for id, h := range s.held {
		if !h.target.Alive() {
			s.forget([]string{id})
		}
	}
}

func (s *server) overdue() bool { return s.deadline != 0 && s.deadline.Until() <= 0 }

// extend sets the deadline.
func (s *server) extend(deadline boottime.Instant) error {
	s.deadline = deadline
	s.firing.again()
	return s.timer.Set(deadline)
}

// expectedIDs are the ids that are expected.
func (s *server) expectedIDs() []string { return slices.Collect(maps.Keys(s.expected)) }
