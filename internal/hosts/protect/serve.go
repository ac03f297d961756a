package protect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect/keep"
	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/standby"
)

// Main is the main function of the process that StartKeeper, StartStanding or, for
// kept connections, Run created. It holds and releases on request, and releases at once when its
// starter is gone. args are the arguments that they appended; backends are all
// backends, the best first. Main returns the exit code.
func Main(args []string, backends []Backend, log *slog.Logger) int {
	run := func() error { return serveStarter(args, backends, log) }
	if len(args) == 1 && args[0] == argRelay {
		return keep.Main(log)
	}
	if len(args) == 2 && args[0] == argStanding {
		run = func() error { return serveStanding(args[1], backends, log) }
	}
	if err := run(); err != nil {
		log.Error("protect: " + err.Error())
		return 1
	}
	return 0
}

// serveStarter runs a keeper that was started for one protect.
func serveStarter(args []string, backends []Backend, log *slog.Logger) error {
	locks := 0
	if len(args) == 1 {
		locks, _ = strconv.Atoi(args[0])
	}
	// The lock files are only kept open, which holds the locks.
	standby.Settle(keeperFD+locks, nil)
	line, err := child.Adopt(keeperFD)
	if err != nil {
		return fmt.Errorf("the socket to the starter: %w", err)
	}
	s := newServer(line, backends, newOwners(), newLedger(), log)
	err = s.run()
	if len(s.linger) > 0 { // the ports are free for the next protect
		for fd := range locks {
			unix.Close(keeperFD + 1 + fd)
		}
	}
	for _, wait := range s.linger {
		wait()
	}
	return err
}

// server is the keeper's side of one starter. One goroutine reads; another does
// everything else.
type server struct {
	line     *net.UnixConn
	backends []Backend
	owners   *owners
	ledger   *ledger
	starter  int // pid; 0: unknown
	log      *slog.Logger
	requests chan request
	gone     chan struct{} // closed when the starter is gone
	ended    chan struct{} // closed when run returns
	linger   []func()      // what goes on after that, in this process
}

func newServer(line *net.UnixConn, backends []Backend, o *owners, l *ledger, log *slog.Logger) *server {
	return &server{
		line: line, backends: backends, owners: o, ledger: l, log: log,
		requests: make(chan request), gone: make(chan struct{}), ended: make(chan struct{}),
	}
}

// listen reads until the starter is gone.
func (s *server) listen() {
	defer close(s.gone)
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxRights))
	for {
		n, m, flags, _, err := s.line.ReadMsgUnix(buf, oob)
		r := request{locks: rights(oob[:m])}
		if err != nil || n <= 0 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || json.Unmarshal(buf[:n], &r) != nil {
			r.close()
			return
		}
		select {
		case s.requests <- r:
		case <-s.ended:
			r.close()
			return
		}
	}
}

// rights returns the files that came with a message.
func rights(oob []byte) (files []*os.File) {
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range ms {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // credentials or another kind of control message
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "lock"))
		}
	}
	return files
}

// run answers until the starter is gone, and closes the line.
func (s *server) run() error {
	var listening sync.WaitGroup
	listening.Go(s.listen)
	err := s.answerAll()
	close(s.ended)
	err = errors.Join(err, s.line.Close())
	listening.Wait()
	return err
}

func (s *server) answerAll() error {
	for {
		select {
		case <-s.gone:
			return nil
		case r := <-s.requests:
			err := s.handle(r)
			r.close()
			if err != nil {
				return err
			}
		}
	}
}

// handle executes a request while nothing is held.
func (s *server) handle(r request) error {
	a := answer{Op: r.Op}
	var err error
	switch r.Op {
	case opHold:
		return s.hold(r.Spec)
	case opExited, opRelease, opRan: // of a hold that has ended by itself
		return nil
	case opProbe:
		a.Probes, err = s.probe(r.Spec)
	case opTidy:
		err = s.tidy(r.Left)
	case opDrain:
		err = errors.New("nothing is held")
	case opHello:
		a.Hello = hello{protocol, s.ledger.list()}
	case opInstall:
		if err = s.ledger.install(r.Installed); err == nil {
			// Without it holds begin as if nothing were prepared.
			if err := prepare(s.backends, r.Installed); err != nil {
				s.log.Warn("protect: prepare", "err", err)
			}
		}
	case opStatus:
		a.Standing = Standing{Pid: os.Getpid(), Since: s.ledger.since, Ports: s.ledger.report()}
		s.listening(a.Standing.Ports)
	case opQuit:
		s.ledger.quit()
	default:
		return fmt.Errorf("unknown request %q", r.Op)
	}
	return s.answer(a.with(err))
}

// prepare prepares the backends by whose names ports are installed, and no other ones.
func prepare(backends []Backend, ports []Installed) error {
	var errs []error
	for _, b := range backends {
		if p, ok := b.(Preparer); ok {
			errs = append(errs, p.Prepare(slices.ContainsFunc(ports, func(i Installed) bool { return i.Backend == b.Name() })))
		}
	}
	return errors.Join(errs...)
}

// listening sets Listening of each port. It stays false on an error.
func (s *server) listening(ports []Prepared) {
	for i := range ports {
		sk, err := newSockets([]Address{ports[i].Address}, s.owners)
		if err != nil {
			return
		}
		ports[i].Listening = sk.listening()
		sk.Close()
	}
}

func (s *server) probe(spec Spec) ([]Refusal, error) {
	sk, err := newSockets(spec.Addresses, s.owners)
	if err != nil {
		return nil, err
	}
	defer sk.Close()
	target := sk.Target(spec)
	if _, err := target.Serving(); err != nil {
		return nil, err
	}
	var rs []Refusal
	for _, b := range s.backends {
		if b.Name() == Steer {
			continue
		}
		r := Refusal{Backend: b.Name()}
		if err := b.Probe(context.Background(), target); err != nil {
			r.Why = err.Error()
		}
		rs = append(rs, r)
	}
	return rs, nil
}

// tidy undoes the residue of a killed keeper.
func (s *server) tidy(l Residue) error {
	sk, err := newSockets(l.Of, s.owners)
	if err != nil {
		return err
	}
	defer sk.Close()
	for _, b := range s.backends {
		if b.Name() == l.Backend {
			return b.Tidy(context.Background(), sk.Target(Spec{}), l.What)
		}
	}
	return fmt.Errorf("there is no backend %q", l.Backend)
}

// hold runs one hold from its beginning to its end.
func (s *server) hold(spec Spec) error {
	start := time.Now()
	refuse := func(err error) error { return s.answer(answer{Op: opHold}.with(err)) }
	sk, err := newSockets(spec.Addresses, s.owners)
	if err != nil {
		return refuse(err)
	}
	defer func() {
		if !sk.lent {
			sk.Close()
		}
	}()
	if !s.ledger.enter() {
		return refuse(errLeaving)
	}
	defer s.ledger.leave()
	s.ledger.prefer(&spec)
	s.sweep()
	sk.udp = spec.UDP != "" && spec.UDP != NoDatagrams
	target := sk.Target(spec)
	old, err := sk.Listeners()
	if err == nil && len(old) == 0 && !spec.Forwarded {
		err = ErrNothingListens
	}
	if err != nil {
		return refuse(err)
	}
	var asked []Asked
	if !spec.Forwarded { // else the starter asks it, in the server's namespace
		asked = questions(context.Background(), spec.Ready, sk.ports(), connections(old), target.Owners, reachFreely)
	}
	sk.asked = slices.ContainsFunc(asked, func(a Asked) bool { return a.Port != 0 })
	h, began, err := s.beginAll(spec, sk)
	if err != nil {
		return refuse(err)
	}
	if d, ok := h.(HeldDatagrams); ok {
		sk.begun = d.Handshakes
		sk.stays = spec.Overlap || d.Datagrams().Flows == ByConnection
	}
	began.Asked = asked
	began.Took = time.Since(start)
	if what := h.Residue(); what != "" {
		began.Residue = &Residue{began.Backend, what, spec.Addresses}
	}
	k := &keeping{server: s, spec: spec, sockets: sk, held: h, start: start, ready: newReadiness(old, start), ended: make(chan ran, 1)}
	k.ready.elsewhere, k.ready.gated, k.ready.overlap = spec.Forwarded, spec.Gate, spec.Overlap
	if !spec.Forwarded && !spec.Gate {
		k.trials = newTrials(old, target.Owners)
	}
	k.asker = newAsker(asked, ReachPast(h), k.program)
	defer s.ledger.began(s.starter, spec, began, h)()
	err = s.answer(answer{Op: opHold, Began: began})
	if err != nil {
		k.asker.end()
		return errors.Join(err, h.Release(context.Background()))
	}
	return k.run()
}

// sweep releases the connections that dead protects of any port keep waiting.
func (s *server) sweep() {
	for _, b := range s.backends {
		if w, ok := b.(Sweeper); ok {
			if err := w.Sweep(); err != nil {
				s.log.Warn("protect: sweep after an earlier hold", "backend", b.Name(), "err", err)
			}
		}
	}
}

// begin tries the backends in their order.
func (s *server) begin(spec Spec, t Target) (Held, Began, error) {
	var began Began
	for _, b := range s.backends {
		if spec.Backend != "" && spec.Backend != Auto && spec.Backend != b.Name() {
			continue
		}
		if b.Name() == Steer {
			continue // it holds datagrams
		}
		if b.Name() == Migrate && spec.Backend != Migrate && !spec.Overlap {
			continue // it holds nothing; only on explicit request
		}
		h, err := b.Hold(context.Background(), t)
		if err == nil {
			began.Backend = b.Name()
			return h, began, nil
		}
		began.Refused = append(began.Refused, Refusal{b.Name(), err.Error()})
	}
	err := ErrNoBackend
	for _, r := range began.Refused {
		err = fmt.Errorf("%w; %s: %s", err, r.Backend, r.Why)
	}
	return nil, began, err
}

// answer sends a message without blocking: a starter that does not read must
// not block the keeper.
func (s *server) answer(a answer) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	raw, err := s.line.SyscallConn()
	if err != nil {
		return err
	}
	e := raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		return true
	})
	if err == unix.EPIPE || err == unix.ECONNRESET || err == unix.EAGAIN {
		return nil // the starter hangs, or is gone, which listen detects
	}
	return errors.Join(err, e)
}
