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
	// idleLimit is how long a deadman without containers and agent stays. If it has
	// something to report to the next agent it stays longer.
	idleLimit       = 30 * time.Second
	unreportedLimit = time.Hour
	// lookAround is how often it checks that the next agent can find it.
	lookAround = time.Second
	// maxConns bounds the number of connections; one of them controls.
	maxConns = 8
	// maxTurn is the number of messages of one connection that are answered before
	// other connections and the deadline are looked at.
	maxTurn = 1024
)

// server is the deadman's side. One goroutine owns it. It blocks only in poll(2) on
// all of its descriptors; other goroutines kill.
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

	conns      []int           // all connections, oldest first
	controller int             // the connection of the last hello, or -1
	node       holdfast.NodeID // whose containers it kills, once an agent has told it
	alone      boottime.Instant

	deadline boottime.Instant // 0: none yet
	held     map[string]*held
	expected map[string]container // by id
	firing   firing
	ended    bool // it was told to exit
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

// prepare reserves memory and descriptors while they are available.
func (s *server) prepare() {
	if err := standby.LockMemory(); err != nil {
		s.log.Warn("deadman: cannot lock memory", "err", err)
	}
	// A descriptor for each container, and a second one while it is killed.
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

// newOpener reads this process's ancestors and the host's control groups again. The
// ancestors change, because the deadman outlives its starter.
func (s *server) newOpener() error {
	o, err := kill.NewOpener()
	if err != nil {
		return err
	}
	o.NoShims = true // the deadman does not stop the engine
	s.opener = o
	return nil
}

func (s *server) close() {
	for _, fd := range append(slices.Clone(s.conns), s.listener, s.wake) {
		unix.Close(fd)
	}
	_ = os.Remove(filepath.Join(s.dir, socketName(os.Getpid()))) // if it stays, the next agent finds that it refuses connections
}

// watch waits for SIGTERM, which usually means that the host shuts down.
func (s *server) watch(term <-chan os.Signal) {
	for range term {
		s.leaving.Store(true)
		s.wakeUp()
	}
}

// wakeUp wakes run. It may be called from any goroutine.
func (s *server) wakeUp() {
	one := [8]byte{1} // any non-zero number in the host's byte order
	_, _ = unix.Write(s.wake, one[:])
}

// run serves until mayEnd.
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
		// Messages of agents come first. After the whole machine was paused, an
		// extension may be waiting while the old deadline has passed.
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

// beFound listens again if its socket file was removed. Otherwise the next agent
// would start another deadman, and this one would kill by a deadline that no agent
// extends.
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
	s.log.Warn("deadman: its socket file was removed; listening again")
	unix.Close(s.listener)
	s.listener = fd
}

// pause is how long run may sleep, in milliseconds.
func (s *server) pause() int {
	next := s.nextAct()
	if s.controller < 0 && s.idle() {
		next = earlier(next, s.idleUntil())
	}
	if s.controller < 0 {
		next = earlier(next, boottime.Now().Add(lookAround))
	}
	if next == 0 {
		return -1
	}
	return int(max(next.Until().Milliseconds()+1, 0))
}

// earlier is the earlier of two moments; 0 means never.
func earlier(a, b boottime.Instant) boottime.Instant {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// idleUntil is until when a deadman without containers waits for an agent.
func (s *server) idleUntil() boottime.Instant {
	if s.firing.fired != nil {
		return s.alone.Add(unreportedLimit)
	}
	return s.alone.Add(idleLimit)
}

// idle reports whether there are no containers, expected or held.
func (s *server) idle() bool {
	return len(s.held) == 0 && len(s.expected) == 0 && !s.firing.under
}

// mayEnd reports whether this process is no longer needed.
func (s *server) mayEnd() bool {
	unattached := s.controller < 0
	// No container is held, and the last search found none of the expected ones.
	nothing := s.idle() || s.overdue() && len(s.held) == 0 && !s.firing.under && s.firing.searched
	switch {
	case s.ended:
		return true
	case s.leaving.Load(), unattached && s.lost:
		// The host shuts down and must not wait for this process, or no agent can
		// find it any more. It stays for running containers, until the deadline at
		// the longest.
		return nothing
	case unattached && s.idle():
		return s.idleUntil().Until() <= 0
	}
	return unattached && nothing && s.firing.since.Add(unreportedLimit).Until() <= 0
}

// accept takes a connection of a process of the same user.
func (s *server) accept() {
	fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err == unix.EMFILE || err == unix.ENFILE { // the connection stays in the queue, and poll(2) would return at once
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return // the peer has gone, or connects again
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

// drop ends a connection. The end of an agent has no other effect.
func (s *server) drop(conn int) {
	s.conns = slices.DeleteFunc(s.conns, func(c int) bool { return c == conn })
	unix.Close(conn)
	if s.controller == conn {
		s.controller, s.alone = -1, boottime.Now()
	}
}

// serve answers the requests that a connection has sent.
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

// take carries out one message and answers it. An error ends the connection.
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

// hello gives a connection the control. It refuses the agent of another node while
// there are containers: that agent would take them for strays.
func (s *server) hello(conn int, node holdfast.NodeID) error {
	s.prune()
	if node != "" && s.node != "" && node != s.node && !s.idle() {
		return fmt.Errorf("node %s has containers here: %w", s.node, ErrOtherNode)
	}
	if node != "" { // an agent of version 1 sends none
		s.node = node
	}
	old := s.controller
	s.controller = conn
	if old >= 0 && old != conn {
		s.log.Warn("deadman: another agent takes control")
		_ = send(old, reply{}) // the agent may be gone
		s.drop(old)
	}
	return nil
}

func (s *server) status() *status {
	return &status{Version: s.version, Node: s.node, Deadline: s.deadline, Held: len(s.held), Expected: len(s.expected)}
}

// send never blocks: an agent that does not read loses its connection.
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

// answer carries out a request.
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
		a.Fired, a.Expired = s.firing.take(), s.expired()
	}
	if err != nil {
		a.Error, a.Code = err.Error(), codeOf(err)
	}
}

func (s *server) overdue() bool { return s.deadline != 0 && s.deadline.Until() <= 0 }

// extend sets the deadline. Expired containers stay expired: the new deadline may
// be that of a new lease.
func (s *server) extend(deadline boottime.Instant) error {
	s.deadline = deadline
	s.firing.passed = false
	return s.timer.Set(deadline)
}
