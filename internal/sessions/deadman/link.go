package deadman

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/pidfd"
)

const (
	// answerLimit is how long a deadman may take to answer. It takes well under a
	// millisecond; one that does not answer in this time counts as hung.
	answerLimit = 2 * time.Second
	startLimit  = 10 * time.Second
	// helloLimit is answerLimit for the first answer of an earlier agent's deadman.
	// Only that deadman knows its containers, so it gets more time.
	helloLimit = 10 * time.Second
)

// link is a connection to one deadman.
type link struct {
	conn    *child.Conn[reply]
	process *pidfd.Process
	child   *os.Process // the same process, if this process has started it
	status  status
	fired   *Fired // from the answer to hello

	asked      uint64
	superseded atomic.Bool
}

// errGone means that the deadman of a socket is dead.
var errGone = errors.New("no process listens on its socket")

// connect says hello to the deadman behind dir/name, for a node. errGone,
// errForeign, ErrOtherNode.
func connect(dir, name string, node holdfast.NodeID) (*link, error) {
	l, err := dial(dir, name)
	if err != nil {
		return nil, fmt.Errorf("deadman %s: %w", name, err)
	}
	a, err := l.greet(request{Op: opHello, Version: protocol, Node: node})
	if err == nil && a.Code == codeOther && a.Status != nil {
		l.close()
		return nil, fmt.Errorf("deadman %s belongs to node %s, of which %d containers may run: %w", name, a.Status.Node, a.Status.Held+a.Status.Expected, ErrOtherNode)
	}
	if err == nil && a.Status == nil {
		err = errors.New("its answer has no status")
	}
	if errors.Is(err, ErrSuperseded) {
		l.close()
		return nil, err
	}
	if err != nil {
		// It would kill by a deadline that no agent can extend.
		l.kill()
		return nil, fmt.Errorf("deadman %s: it does not answer correctly, and is killed: %w", name, err)
	}
	l.status, l.fired = *a.Status, a.Fired
	return l, nil
}

func dial(dir, name string) (*link, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	opened := false
	defer func() {
		if !opened {
			unix.Close(fd)
		}
	}()
	addr, done, err := short(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	switch err := unix.Connect(fd, addr); err {
	case nil:
	case unix.ECONNREFUSED, unix.ENOENT:
		return nil, errGone
	default:
		return nil, fmt.Errorf("connect: %w", err)
	}
	pid, err := peerOf(fd)
	if err != nil {
		return nil, err
	}
	process, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil, errGone
	} else if err != nil {
		return nil, err
	}
	opened = true
	conn, err := child.Adopt(fd)
	if err != nil {
		process.Close()
		return nil, err
	}
	l := &link{process: process}
	l.conn = child.Talk(conn, maxMessage, child.Handlers[reply]{Divert: func(r reply) (bool, bool) {
		if r.Seq != 0 {
			return true, true
		}
		l.superseded.Store(true)
		return false, false
	}})
	return l, nil
}

// greet asks the first question. A deadman that does not answer may have been
// stopped: SIGCONT wakes it, and it then acts on a deadline that it missed.
func (l *link) greet(r request) (reply, error) {
	a, err := l.ask(r)
	if errors.Is(err, errSilent) {
		_ = l.process.Signal(unix.SIGCONT) // it may have ended
		a, err = l.await(l.asked, helloLimit-answerLimit)
	}
	return a, err
}

// errSilent means that there was no answer in time.
var errSilent = errors.New("no answer")

// ask sends one request and waits for its reply, one at a time. A refusal is in the
// reply. An error means that this deadman is dead or hung, or that another agent
// controls it.
func (l *link) ask(r request) (reply, error) {
	l.asked++
	r.Seq = l.asked
	if err := l.conn.Send(r, nil, answerLimit); err != nil {
		return reply{}, l.why(err)
	}
	return l.await(r.Seq, answerLimit)
}

// await waits for the reply to the request seq.
func (l *link) await(seq uint64, limit time.Duration) (reply, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("%w in %v", errSilent, limit))
	defer cancel()
	a, err := l.conn.Await(ctx, func(a reply) bool { return a.Seq == seq })
	return a, l.why(err)
}

// why is err, or ErrSuperseded if the deadman has said before its end that it serves
// another agent now.
func (l *link) why(err error) error {
	if err != nil && l.superseded.Load() {
		return ErrSuperseded
	}
	return err
}

// do is ask, with a refusal as an error.
func (l *link) do(r request) (reply, error) {
	a, err := l.ask(r)
	if err == nil {
		err = a.refusal()
	}
	return a, err
}

// refusal is the reason why the deadman did not carry out a request, or nil.
func (r reply) refusal() error {
	if r.Error == "" {
		return nil
	}
	if err := coded[r.Code]; err != nil {
		return err
	}
	return errors.New(r.Error)
}

// list returns all containers of the deadman.
func (l *link) list() ([]container, error) {
	var all []container
	for {
		a, err := l.do(request{Op: opList, From: len(all)})
		if err != nil || len(a.List) == 0 {
			return all, err
		}
		all = append(all, a.List...)
	}
}

// put gives a container to the deadman.
func (l *link) put(c container) error {
	r := request{Op: opHold, Container: &c}
	if c.Pid == 0 {
		r.Op, r.Moved = opExpect, true
	}
	_, err := l.do(r)
	return err
}

// close ends the connection and leaves the deadman as it is.
func (l *link) close() {
	l.conn.Close()
	<-l.conn.Ended()
	l.process.Close()
	if l.child != nil {
		_ = l.child.Release()
	}
}

// kill ends a deadman that hangs, has ended, or has been replaced.
func (l *link) kill() {
	_ = l.process.Signal(unix.SIGKILL) // it may have ended
	l.reap()
}

// reap is close for a deadman that ends.
func (l *link) reap() {
	if child := l.child; child != nil {
		l.child = nil
		go func() { _, _ = child.Wait() }() // its exit status does not matter
	}
	l.close()
}

// spawn starts a deadman and connects to it once it listens.
func spawn(argv []string, dir string, node holdfast.NodeID) (*link, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	path := filepath.Join(dir, logName)
	if st, err := os.Stat(path); err == nil && st.Size() > maxLog {
		flags |= os.O_TRUNC
	}
	log, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start a deadman: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start a deadman: %w", err)
	}
	defer r.Close()
	// One thread's worth of work. The rest of the environment may hold secrets. Its
	// standard error is not this process's: a reader that waits for the end of that
	// pipe would wait for the end of the deadman.
	cmd := child.Command(append(argv[:len(argv):len(argv)], dir), "GOMAXPROCS=1", "GODEBUG=madvdontneed=1")
	cmd.Stdout, cmd.Stderr = w, log
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, fmt.Errorf("start a deadman: %w", err)
	}
	buf := make([]byte, len(ready))
	err = r.SetReadDeadline(time.Now().Add(startLimit))
	if err == nil {
		_, err = r.Read(buf)
	}
	var l *link
	if err == nil && string(buf) == ready {
		l, err = connect(dir, socketName(cmd.Process.Pid), node)
	}
	if l == nil {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
		return nil, fmt.Errorf("start a deadman: it does not answer, see %s: %w", path, errors.Join(err, ErrNone))
	}
	l.child = cmd.Process
	return l, nil
}

// maxLog is the size in bytes from which on a log is truncated.
const maxLog = 1 << 20
