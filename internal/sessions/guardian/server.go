package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/vethnet"
)

// server is the guardian's side. Only one goroutine uses it.
type server struct {
	dir   string
	log   *slog.Logger
	boot  string
	self  process
	timer *boottime.Timer
	plans map[uint64]*held
}

// held is a plan that the guardian has.
type held struct {
	name     string
	armed    bool
	undone   bool  // carried out, and kept to be carried out again
	broken   error // why the plan is incomplete
	deadline boottime.Instant
	parts    []part
	file     string // the plan's file, or ""
}

type part struct {
	kind      Kind
	processes []*pidfd.Process
	limits    []Limit
	nets      []vethnet.Config
	dir       string
}

func newServer(dir string, log *slog.Logger) (*server, error) {
	s := &server{dir: dir, log: log, plans: make(map[uint64]*held)}
	var err error
	if s.boot, err = proc.Host.BootID(); err != nil {
		return nil, err
	}
	if s.self, err = self(); err != nil {
		return nil, err
	}
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	s.timer, err = boottime.NewTimer()
	return s, err
}

// run serves until the starter is gone.
func (s *server) run() error {
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFDs))
	for {
		fds := []unix.PollFd{{Fd: socketFD, Events: unix.POLLIN}, {Fd: int32(s.timer.FD()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		// The clock decides, not the timer. On a virtual machine the CPU that the
		// timer interrupts may stand still for half a second while the starter runs
		// on another CPU and asks.
		s.expire()
		if fds[0].Revents == 0 {
			continue
		}
		m, received, err := receive(buf, oob)
		if err != nil {
			s.undoAll("the process that armed it is gone")
			s.runLeavePlans()
			return ignoreEOF(err)
		}
		if err := s.handle(m, received); err != nil {
			s.undoAll("the process that armed it does not take answers")
			s.runLeavePlans()
			return ignoreEOF(err)
		}
	}
}

// errEOF means that the starter has closed the socket or died.
var errEOF = errors.New("end of socket")

func ignoreEOF(err error) error {
	if errors.Is(err, errEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

// receive reads one message with its descriptors.
func receive(buf, oob []byte) (message, []int, error) {
	n, oobn, flags, _, err := unix.Recvmsg(socketFD, buf, oob, unix.MSG_CMSG_CLOEXEC)
	switch {
	case err != nil:
		return message{}, nil, fmt.Errorf("receive: %w", err)
	case n == 0:
		return message{}, nil, errEOF
	}
	var fds []int
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	for _, c := range cmsgs {
		got, e := unix.ParseUnixRights(&c)
		fds, err = append(fds, got...), errors.Join(err, e)
	}
	var m message
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.Join(err, errors.New("the message was cut off"))
	} else if err == nil {
		err = json.Unmarshal(buf[:n], &m)
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return m, nil, fmt.Errorf("receive: %w", err)
	}
	return m, fds, nil
}

// handle carries out a message. The error is that of sending the answer.
func (s *server) handle(m message, fds []int) error {
	p := s.plans[m.ID]
	var err error
	switch m.Op {
	case opAdd:
		s.add(m, fds)
		return nil
	case opArm:
		err = s.arm(m)
	case opCheck:
		if p == nil || !p.armed || p.undone {
			return s.answer(reply{Seq: m.Seq, Undone: true})
		}
	case opUndo:
		if p != nil && p.armed {
			err = s.undo(m.ID, "its starter could not")
		}
		if err != nil { // the starter may ask again
			return s.answer(reply{Seq: m.Seq, Error: err.Error()})
		}
		s.forget(m.ID)
	case opDisarm:
		undone := p == nil || p.undone
		s.forget(m.ID)
		if undone {
			return s.answer(reply{Seq: m.Seq, Undone: true})
		}
	default:
		err = fmt.Errorf("unknown request %q", m.Op)
	}
	if err == nil {
		err = s.setTimer()
	}
	r := reply{Seq: m.Seq}
	if err != nil {
		s.forget(m.ID)
		r.Error = err.Error()
	}
	return s.answer(r)
}

func (s *server) answer(r reply) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// A starter that reads nothing fills its socket; the guardian must not block on
	// it.
	err = unix.Sendto(socketFD, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	if err == unix.EAGAIN {
		return nil
	}
	return err
}

// add appends a part to a plan. Errors are reported when the plan is armed.
func (s *server) add(m message, fds []int) {
	p := s.plan(m.ID)
	pt := part{kind: m.Kind, limits: m.Limits, nets: m.Nets, dir: m.Dir}
	for i, fd := range fds {
		if i >= len(m.Processes) {
			unix.Close(fd)
			continue
		}
		h, err := pidfd.Receive(fd, m.Processes[i].Start)
		if err != nil {
			p.broken = errors.Join(p.broken, err)
			continue
		}
		pt.processes = append(pt.processes, h)
	}
	if len(pt.processes) != len(m.Processes) {
		p.broken = errors.Join(p.broken, fmt.Errorf("%d of %d processes came", len(pt.processes), len(m.Processes)))
	}
	if len(p.parts) == maxParts || len(s.plans) > maxPlans {
		p.broken = errors.New("too many plans or parts of a plan")
		release(pt.processes)
		return
	}
	p.parts = append(p.parts, pt)
}

// plan returns the plan with an id, a new one if there is none.
func (s *server) plan(id uint64) *held {
	if s.plans[id] == nil {
		s.plans[id] = &held{}
	}
	return s.plans[id]
}

// arm writes the plan to its file and then puts it into effect.
func (s *server) arm(m message) error {
	p := s.plan(m.ID)
	if p.broken != nil {
		return fmt.Errorf("the plan did not arrive whole: %w", p.broken)
	}
	p.name, p.deadline = m.Name, m.Deadline
	if s.dir != "" && !p.lasts() && !p.thaws() { // whose notes are files
		p.file = filepath.Join(s.dir, fmt.Sprintf("undo-%d-%d.json", s.self.Pid, m.ID))
		if err := p.state(s.boot, s.self).write(p.file); err != nil {
			return fmt.Errorf("write the plan down: %w", err)
		}
	}
	p.armed = true
	return nil
}

// state is the plan as it is written down.
func (p *held) state(boot string, self process) state {
	st := state{BootID: boot, Guardian: self, Name: p.name}
	for _, pt := range p.parts {
		st.Undo = append(st.Undo, stateUndo{Kind: pt.kind, Processes: written(pt.processes), Limits: pt.limits})
	}
	return st
}

// setTimer sets the timer to the first deadline.
func (s *server) setTimer() error {
	var first boottime.Instant
	for _, p := range s.plans {
		if p.armed && !p.lasts() && (first == 0 || p.deadline < first) {
			first = p.deadline
		}
	}
	return s.timer.Set(first)
}

// expire carries out the plans that are due. It repeats them every againAfter until
// the plan is disarmed or the starter is gone, because a stalled starter may do only
// now what the plan undoes.
func (s *server) expire() {
	now := boottime.Now()
	for id, p := range s.plans {
		if !p.armed || p.lasts() || p.deadline > now {
			continue
		}
		_ = s.undo(id, "its deadline has passed") // the error is logged, and the undo is repeated
		p.undone, p.deadline = true, now.Add(againAfter)
	}
	if err := s.setTimer(); err != nil {
		s.undoAll(err.Error())
	}
}

func (s *server) undoAll(why string) {
	for id, p := range s.plans {
		if p.armed && !p.lasts() {
			_ = s.undo(id, why) // the error is logged; the guardian ends
			s.forget(id)
		}
	}
}

// undo carries a plan out.
func (s *server) undo(id uint64, why string) error {
	p := s.plans[id]
	var err error
	for _, pt := range p.parts {
		err = errors.Join(err, pt.perform())
	}
	switch {
	case p.undone: // it was logged the first time
	case err != nil:
		s.log.Error("guardian: undo "+p.name, "because", why, "err", err)
	default:
		s.log.Warn("guardian: undid "+p.name, "because", why)
	}
	return err
}

func (s *server) forget(id uint64) {
	p := s.plans[id]
	if p == nil {
		return
	}
	delete(s.plans, id)
	if p.file != "" {
		if err := os.Remove(p.file); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.log.Warn("guardian: " + err.Error())
		}
	}
	for _, pt := range p.parts {
		release(pt.processes)
	}
}
