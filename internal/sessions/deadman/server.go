package deadman

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/standby"
	"holdfast/internal/sessions/kill"
)

const (
	// lonely is how long a deadman with nothing to hold and no agent stays.
	// The next agent wants to hear of what it did: then it stays longer.
	lonely       = 30 * time.Second
	lonelyUntold = time.Hour
	// lookAround is how often it makes sure that the next agent can find it.
	lookAround = time.Second
	// maxConns bounds how many are connected at once: one controls.
	maxConns = 8
	// maxTurn is how many messages of one connection are answered before
	// others, and the deadline, have their turn.
	maxTurn = 1024
)

// server is the deadman's side. One goroutine owns it and never waits for
// anything but all of its descriptors at once; killing goes on beside it.
type server struct {
	version  int // of the protocol
	dir      string
	log      *slog.Logger
	opener   *kill.Opener
	listener int
	timer    *boottime.Timer
	wake     int         // eventfd: a kill has ended, or a SIGTERM came
	leaving  atomic.Bool // SIGTERM came
	lost     bool        // the run directory is gone

	conns      []int           // all that are connected, oldest first
	controller int             // the one that said hello last, -1 for none
	node       holdfast.NodeID // that it stands behind, once an agent has said so
	alone      boottime.Instant

	deadline boottime.Instant // 0: none yet
	held     map[string]*held
	expected map[string]container // by id
	firing   firing
	ended    bool // told to stand down
	buf      [maxMessage + 1]byte
}

func newServer(dir string, log *slog.Logger) (*server, error) {
	s := &server{
		version: protocol, dir: dir, log: log, controller: -1, alone: boottime.Now(), listener: -1, wake: -1,
		held: make(map[string]*held), expected: make(map[string]container),
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
	const files, few = 3 * maxContainers, 5_000
	limit := unix.Rlimit{Cur: files, Max: files}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil || now.Cur >= files {
		return
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil && now.Cur < few {
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
		if s.controller < 0 {
			s.beFound()
		}
	}
	return nil
}

// beFound listens anew where somebody has removed the socket: the next agent
// would start another deadman, and this one would kill by a deadline that nobody
// moves any more.
func (s *server) beFound() {
	name := socketName(os.Getpid())
	if _, err := os.Lstat(filepath.Join(s.dir, name)); !errors.Is(err, os.ErrNotExist) {
		return
	}
	fd, err := listen(s.dir, name)
	s.lost = err != nil
	if err != nil {
		return
	}
	s.log.Warn("deadman: somebody has removed its socket")
	unix.Close(s.listener)
	s.listener = fd
}

// pause is how long run may sleep, in milliseconds.
func (s *server) pause() int {
	next := s.nextAct()
	if s.controller < 0 && s.idle() {
		next = sooner(next, s.stays())
	}
	if s.controller < 0 {
		next = sooner(next, boottime.Now().Add(lookAround))
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
	nobody := s.controller < 0
	// All that is left, if anything, is expected and was not there at the last
	// look.
	nothing := s.idle() || s.overdue() && len(s.held) == 0 && !s.firing.under && s.firing.searched
	switch {
	case s.ended:
		return true
	case s.leaving.Load(), nobody && s.lost:
		// The host ends, and must not have to wait for this; or no agent
		// could find it any more. What runs is waited for, until the deadline
		// at the longest.
		return nothing
	case nobody && s.idle():
		return s.stays().Until() <= 0
	}
	return nobody && nothing && s.firing.since.Add(lonelyUntold).Until() <= 0
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
	answer := reply{Seq: r.Seq}
	err = r.check()
	if r.Op == opHello && err == nil {
		err = s.hello(conn, r.Node)
	} else if r.Op != opHello && conn != s.controller {
		return fmt.Errorf("%q without a hello", r.Op)
	}
	if err != nil {
		answer.Error, answer.Code, answer.Status = err.Error(), codeOf(err), s.status()
	} else {
		s.answer(r, &answer)
	}
	return send(conn, answer)
}

// hello makes a connection the one that controls. An agent of another node than
// the one whose containers are here is refused: it would take them for strays.
func (s *server) hello(conn int, node holdfast.NodeID) error {
	s.prune()
	if node != "" && s.node != "" && node != s.node && !s.idle() {
		return fmt.Errorf("node %s has containers here: %w", s.node, ErrOtherNode)
	}
	if node != "" { // else an agent of version 1
		s.node = node
	}
	old := s.controller
	s.controller = conn
	if old >= 0 && old != conn {
		s.log.Warn("deadman: another agent takes over")
		_ = send(old, reply{}) // it may be gone
		s.drop(old)
	}
	return nil
}

func (s *server) status() *status {
	return &status{Version: s.version, Node: s.node, Deadline: s.deadline, Held: len(s.held), Expected: len(s.expected)}
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
		a.Status, a.Fired = s.status(), s.firing.take()
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
		a.Fired, a.Condemned = s.firing.take(), s.condemned()
	}
	if err != nil {
		a.Error, a.Code = err.Error(), codeOf(err)
	}
}

func (s *server) overdue() bool { return s.deadline != 0 && s.deadline.Until() <= 0 }

// extend sets the deadline. What is condemned stays so: it may be a new lease's.
func (s *server) extend(deadline boottime.Instant) error {
	s.deadline = deadline
	s.firing.passed = false
	return s.timer.Set(deadline)
}
