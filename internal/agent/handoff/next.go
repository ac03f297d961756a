package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/listenfd"
)

// Next is the agent that comes after this process's, in a child process. Its
// methods are for one goroutine.
type Next struct {
	conn  *net.UnixConn
	cmd   *exec.Cmd
	hello Hello
	said  chan message  // closed when all is read that the process said
	ended chan struct{} // closed when the process has ended, before said is
}

// Options say what to start.
type Options struct {
	Argv           []string // its program and arguments
	Home           Home     // of this agent
	Stdout, Stderr io.Writer
	// Limit is how long it may take to say hello.
	Limit time.Duration
}

// Start starts the next agent and returns when it has said who it is. Nothing
// has changed for this agent by then, nor if it fails: then the process has
// ended.
func Start(ctx context.Context, o Options) (*Next, error) {
	n, err := spawn(o)
	if err != nil {
		return nil, fmt.Errorf("start the next agent: %w", err)
	}
	if err := n.greet(ctx, o); err != nil {
		n.Kill()
		return nil, err
	}
	return n, nil
}

func spawn(o Options) (*Next, error) {
	cmd := exec.Command(o.Argv[0], o.Argv[1:]...)
	cmd.Env = append(os.Environ(), envFD+"="+strconv.Itoa(child.SocketFD))
	cmd.Stdout, cmd.Stderr = o.Stdout, o.Stderr
	cmd.WaitDelay = time.Second // for children of its own that have its output
	conn, err := child.Start(cmd, unix.SOCK_SEQPACKET, cmd.Start)
	if err != nil {
		return nil, holdfast.WithHint(err, "install the program again; the agent that runs needs no program on disk")
	}
	n := &Next{conn: conn, cmd: cmd, said: make(chan message, 8), ended: make(chan struct{})}
	go n.listen()
	go func() {
		_ = cmd.Wait() // how it ended is in its ProcessState
		close(n.ended)
		// What it said can still be read. A child of its own may have the
		// other end open.
		_ = conn.CloseRead()
	}()
	return n, nil
}

// listen reads what the process says.
func (n *Next) listen() {
	defer close(n.said)
	buf := make([]byte, maxMessage)
	for {
		m, sockets, err := receive(n.conn, buf)
		for _, s := range sockets {
			s.Close() // nobody has asked for any
		}
		if err != nil {
			return
		}
		select {
		case n.said <- m:
		default: // nobody says that much
		}
	}
}

// greet waits for the hello.
func (n *Next) greet(ctx context.Context, o Options) error {
	limit, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	m, err := n.hear(limit)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return holdfast.WithHint(fmt.Errorf("the next agent, %s, did not say within %v who it is", o.Argv[0], o.Limit), notOurs)
	case errors.Is(err, ErrEnded):
		return holdfast.WithHint(fmt.Errorf("the next agent, %s, ended before it had said who it is: %s", o.Argv[0], n.ending()), notOurs)
	case err != nil:
		return err
	case m.Hello == nil || m.Hello.Protocol != Protocol:
		return holdfast.WithHint(errors.New("the next agent takes over in another way than this one hands over"), byRestart)
	}
	if d := o.Home.differs(m.Hello.Home); d != "" {
		return holdfast.WithHint(errors.New(d), "this cannot change hands. "+byRestart)
	}
	n.hello = *m.Hello
	return nil
}

// Hints.
const (
	notOurs   = "the agent's log has what it printed; `holdfast version` says which program is on disk"
	byRestart = "To change it end the agent with `holdfast agent stop --keep`, and start it anew"
)

// ErrEnded means that the next agent's process has ended.
var ErrEnded = errors.New("the next agent has ended")

// hear returns what is said next. An error is ctx's, a *Reason that the next
// agent gives, or ErrEnded.
func (n *Next) hear(ctx context.Context) (message, error) {
	for {
		select {
		case m, more := <-n.said:
			if m.Error != nil {
				return m, m.Error
			}
			if more {
				return m, nil
			}
		case <-ctx.Done():
			return message{}, ctx.Err()
		}
		select { // it has closed its end
		case <-n.ended:
			return message{}, ErrEnded
		case <-ctx.Done():
			return message{}, ctx.Err()
		}
	}
}

// Await returns how far the next agent is, when it says so. An error is ctx's,
// or why the next agent cannot serve: what it has said itself, or ErrEnded and
// how it ended.
func (n *Next) Await(ctx context.Context) (Event, error) {
	m, err := n.hear(ctx)
	if errors.Is(err, ErrEnded) {
		return "", holdfast.WithHint(fmt.Errorf("%w: %s", ErrEnded, n.ending()), notOurs)
	}
	return m.Event, err
}

// ending says how the process ended, once it has.
func (n *Next) ending() string { return n.cmd.ProcessState.String() }

// Hello is who it is.
func (n *Next) Hello() Hello { return n.hello }

// PID is its process.
func (n *Next) PID() int { return n.cmd.Process.Pid }

// Go gives the next agent its turn. The sockets stay this process's, too; note
// is JSON for the other one's Take.
func (n *Next) Go(sockets []*listenfd.Socket, note []byte) error {
	names := make([]string, len(sockets))
	for i, s := range sockets {
		names[i] = s.Name
	}
	if err := send(n.conn, message{Go: &turn{names, note}}, sockets...); err != nil {
		return fmt.Errorf("give the next agent its turn: %w", err)
	}
	return nil
}

// Over tells it that this process will not serve any more, and lets go of it.
func (n *Next) Over() error {
	err := send(n.conn, message{Over: true})
	n.conn.Close()
	if err != nil {
		return fmt.Errorf("leave the next agent to itself: %w", err)
	}
	return nil
}

// Signal sends a signal to its process, which may have ended.
func (n *Next) Signal(s os.Signal) { _ = n.cmd.Process.Signal(s) }

// Kill ends it, and returns when it has ended.
func (n *Next) Kill() {
	n.Signal(os.Kill)
	<-n.ended
	n.conn.Close()
}

// Ended is closed when its process has ended.
func (n *Next) Ended() <-chan struct{} { return n.ended }

// ExitCode is its exit code once it has ended; -1 where a signal has ended it.
func (n *Next) ExitCode() int { return n.cmd.ProcessState.ExitCode() }
