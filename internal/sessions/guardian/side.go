package guardian

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/pidfd"
)

// answerLimit is how long a guardian may take to answer. It answers in well under a
// millisecond; one that does not answer in this time counts as hung.
const answerLimit = 250 * time.Millisecond

// disarmLimit is answerLimit at the end of a risky act. Nothing waits for that
// answer, and it comes late where hundreds of shims, just continued, take the CPUs.
const disarmLimit = 5 * time.Second

// closeLimit bounds the undo of the plans that are armed when the starter closes the
// socket.
const closeLimit = 11 * time.Second

// side is one guardian process as its starter sees it.
type side struct {
	conn    *child.Conn[reply] // it ends when the guardian is gone, reaped and its plans are undone
	process *os.Process
	asked   uint64 // sequence number of the last question

	mu      sync.Mutex
	gone    bool
	closing bool
	armed   map[*Armed]bool
}

// spawn starts a guardian process and checks that it answers.
func (g *Guardian) spawn() (*side, error) {
	// One thread's worth of work, and PATH to find iptables. The rest of the
	// environment may hold secrets.
	cmd := child.Command(g.argv, "GOMAXPROCS=1", "GODEBUG=madvdontneed=1", "PATH="+os.Getenv("PATH"))
	cmd.Stderr = os.Stderr
	conn, err := child.Start(cmd, unix.SOCK_SEQPACKET, cmd.Start)
	if err != nil {
		return nil, fmt.Errorf("start a guardian: %w", err)
	}
	s := &side{process: cmd.Process, armed: make(map[*Armed]bool)}
	s.conn = child.Talk(conn, maxMessage, child.Handlers[reply]{End: func() { s.end(conn, g.log) }})
	// A disarm of a plan that does not exist is harmless and always answered.
	if r, err := s.ask([]message{{Op: opDisarm}}, [][]*pidfd.Process{nil}, 10*time.Second); err != nil || !r.Undone {
		s.close()
		return nil, fmt.Errorf("start a guardian: it does not answer: %w", errors.Join(err, ErrNoGuardian))
	}
	return s, nil
}

// end undoes the guardian's plans when the guardian has ended.
func (s *side) end(conn *net.UnixConn, log *slog.Logger) {
	s.mu.Lock()
	s.gone = true
	orphans, stays := s.armed, false
	s.armed = nil
	closing := s.closing
	s.mu.Unlock()
	for a := range orphans {
		if closing && a.plan.lasts() {
			stays = true
			close(a.done)
			continue
		}
		log.Error("guardian: it died with an armed plan; undoing the harmless parts here",
			"plan", a.plan.Name, "err", a.undoHere())
		close(a.done)
	}
	conn.Close()
	if stays { // the guardian lives on until the plan is done
		go func() { _, _ = s.process.Wait() }()
		return
	}
	_ = s.process.Kill() // it has closed its socket: it is dead or broken
	_, _ = s.process.Wait()
}

// ask sends messages and waits for the answer to the last. One question at a
// time.
func (s *side) ask(ms []message, fds [][]*pidfd.Process, limit time.Duration) (reply, error) {
	s.asked++
	for i, m := range ms {
		m.Seq = s.asked
		if err := s.send(m, fds[i], limit); err != nil {
			return reply{}, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("no answer in %v", limit))
	defer cancel()
	r, err := s.conn.Await(ctx, func(r reply) bool { return r.Seq == s.asked })
	if errors.Is(err, child.ErrGone) {
		err = ErrNoGuardian
	}
	return r, err
}

// send sends one message with its descriptors, which are held open meanwhile.
func (s *side) send(m message, ps []*pidfd.Process, limit time.Duration) error {
	return withFDs(ps, nil, func(fds []int) error {
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		return s.conn.Send(m, rights, limit)
	})
}

// withFDs runs f with the descriptors of all processes.
func withFDs(ps []*pidfd.Process, fds []int, f func([]int) error) error {
	if len(ps) == 0 {
		return f(fds)
	}
	var err error
	if e := ps[0].Control(func(fd int) { err = withFDs(ps[1:], append(fds, fd), f) }); e != nil {
		return e
	}
	return err
}

// close closes the socket. The guardian then undoes every armed plan and exits; plans
// of kind Leave it carries out after that.
func (s *side) close() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	_ = s.conn.CloseWrite()
	select {
	case <-s.conn.Ended():
	case <-time.After(closeLimit): // it hangs
		_ = s.process.Kill()
		<-s.conn.Ended()
	}
}

func (s *side) register(a *Armed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.armed[a] = true
	}
}

func (s *side) unregister(a *Armed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed[a] {
		delete(s.armed, a)
		close(a.done)
	}
}

func (s *side) has(a *Armed) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.armed[a]
}

func (s *side) isGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}
