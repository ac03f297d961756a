package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/pidfd"
)

// answerLimit is how long a guardian may take to answer. It answers in well
// under a millisecond; one that does not in this time is of no use.
const answerLimit = 250 * time.Millisecond

// disarmLimit is answerLimit at the end of a risky act. Nothing hangs on that
// answer any more, and it comes late where what was continued, hundreds of
// shims, takes the CPUs.
const disarmLimit = 5 * time.Second

// side is one guardian process as its starter sees it.
type side struct {
	conn    *net.UnixConn
	process *os.Process
	answers chan reply    // closed when the guardian is gone
	asked   uint64        // questions so far
	done    chan struct{} // closed when it is reaped and undone

	mu      sync.Mutex
	gone    bool
	closing bool
	armed   map[*Armed]bool
}

// spawn starts a process and proves that it answers.
func (g *Guardian) spawn() (*side, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start a guardian: socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "guardian"), os.NewFile(uintptr(fds[1]), "guardian")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, fmt.Errorf("start a guardian: %w", err)
	}
	cmd := exec.Command(g.argv[0], g.argv[1:]...)
	// One thread's worth of work, and where iptables are; the rest of the environment
	// is not its business.
	cmd.Env = []string{"GOMAXPROCS=1", "GODEBUG=madvdontneed=1", "PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close() // now: the end of the socket shows only when nobody has it open
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("start a guardian: %w", err)
	}
	s := &side{
		conn: conn.(*net.UnixConn), process: cmd.Process,
		answers: make(chan reply, 1), done: make(chan struct{}), armed: make(map[*Armed]bool),
	}
	go s.listen(g.log)
	// To disarm what does not exist is a question that any guardian answers.
	if r, err := s.ask([]message{{Op: opDisarm}}, [][]*pidfd.Process{nil}, 10*time.Second); err != nil || !r.Undone {
		s.close()
		return nil, fmt.Errorf("start a guardian: it does not answer: %w", errors.Join(err, ErrNoGuardian))
	}
	return s, nil
}

// listen passes answers on until the guardian is gone; then it undoes what was
// in its hands.
func (s *side) listen(log *slog.Logger) {
	defer close(s.done)
	buf := make([]byte, 4096)
	for {
		n, err := s.conn.Read(buf)
		if err != nil || n == 0 {
			break
		}
		var r reply
		if json.Unmarshal(buf[:n], &r) != nil {
			break
		}
		select {
		case s.answers <- r:
		default: // the answer to a question that was given up
		}
	}
	s.mu.Lock()
	s.gone = true
	orphans, lingers := s.armed, false
	s.armed = nil
	closing := s.closing
	s.mu.Unlock()
	for a := range orphans {
		if closing && a.plan.lasts() {
			lingers = true
			close(a.done)
			continue
		}
		log.Error("guardian: it died with a plan in its hands; undoing what may be undone at any time",
			"plan", a.plan.Name, "err", a.undoHere())
		close(a.done)
	}
	close(s.answers)
	s.conn.Close()
	if lingers { // it goes on by itself
		go func() { _, _ = s.process.Wait() }()
		return
	}
	_ = s.process.Kill() // it has closed its socket: dead or of no use
	_, _ = s.process.Wait()
}

// ask sends messages and waits for the answer to the last. One question at a
// time.
func (s *side) ask(ms []message, fds [][]*pidfd.Process, limit time.Duration) (reply, error) {
	if err := s.conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return reply{}, err
	}
	s.asked++
	for i, m := range ms {
		m.Seq = s.asked
		if err := s.send(m, fds[i]); err != nil {
			return reply{}, err
		}
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		select {
		case r, ok := <-s.answers:
			if !ok {
				return reply{}, ErrNoGuardian
			}
			if r.Seq == s.asked { // not to a question that was given up
				return r, nil
			}
		case <-timeout.C:
			return reply{}, fmt.Errorf("no answer in %v", limit)
		}
	}
}

// send sends one message with its descriptors, which are held open meanwhile.
func (s *side) send(m message, ps []*pidfd.Process) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("a message of %d bytes is too long", len(b))
	}
	return withFDs(ps, nil, func(fds []int) error {
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		_, _, err := s.conn.WriteMsgUnix(b, oob, nil)
		return err
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

// close ends the guardian by the end of the socket, on which it undoes all that
// is armed, and then exits. What outlasts its starter it does after that.
func (s *side) close() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	_ = s.conn.CloseWrite()
	select {
	case <-s.done:
	case <-time.After(killBudget + time.Second): // it hangs
		_ = s.process.Kill()
		<-s.done
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
