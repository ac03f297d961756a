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
	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/platform/linux/listenfd"
)

// Next is the next agent, in a child process. Its methods are for one goroutine.
type Next struct {
	conn  *net.UnixConn
	cmd   *exec.Cmd
	hello Hello
	said  chan message  // closed when all messages of the process are read
	ended chan struct{} // closed when the process has exited, before said is
}

// Options configure Start.
type Options struct {
	Argv           []string // its program and arguments
	Home           Home     // of this agent
	Stdout, Stderr io.Writer
	// Limit is how long the process may take to send its hello.
	Limit time.Duration
}

// Start starts the next agent and returns when it has sent its hello. It changes
// nothing for this agent. Where it fails, the process has exited.
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
	cmd.WaitDelay = time.Second // its own children may keep its output open
	conn, err := child.Start(cmd, unix.SOCK_SEQPACKET, cmd.Start)
	if err != nil {
		return nil, holdfast.WithHint(err, "install the program again; the running agent does not need the file")
	}
	n := &Next{conn: conn, cmd: cmd, said: make(chan message, 8), ended: make(chan struct{})}
	go n.listen()
	go func() {
		_ = cmd.Wait() // the ProcessState has the exit code
		close(n.ended)
		// Messages that were sent can still be read. A child of the process may keep
		// the other end open.
		_ = conn.CloseRead()
	}()
	return n, nil
}

// listen reads the messages of the process.
func (n *Next) listen() {
	defer close(n.said)
	buf := make([]byte, maxMessage)
	for {
		m, fds, err := receive(n.conn, buf)
		connfd.Conn{FDs: fds}.Close() // no message has descriptors
		if err != nil {
			return
		}
		select {
		case n.said <- m:
		default: // more messages than the protocol has
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
		return holdfast.WithHint(fmt.Errorf("the next agent, %s, did not send its hello within %v", o.Argv[0], o.Limit), outputHint)
	case errors.Is(err, ErrEnded):
		return holdfast.WithHint(fmt.Errorf("the next agent, %s, ended before it sent its hello: %s", o.Argv[0], n.ending()), outputHint)
	case err != nil:
		return err
	case m.Hello == nil || m.Hello.Protocol != Protocol:
		return holdfast.WithHint(errors.New("the next agent has another version of the handoff protocol"), restartHint)
	}
	if d := o.Home.differs(m.Hello.Home); d != "" {
		return holdfast.WithHint(errors.New(d), "a handoff cannot change this. "+restartHint)
	}
	n.hello = *m.Hello
	return nil
}

// Hints.
const (
	outputHint  = "the agent's log has its output; `holdfast version` shows the program on disk"
	restartHint = "End the agent with `holdfast agent stop --keep` and start it again"
)

// ErrEnded means that the process of the next agent has exited.
var ErrEnded = errors.New("the next agent has ended")

// hear returns the next message. An error is that of ctx, a *Reason from the next
// agent, or ErrEnded.
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
		select { // the process has closed its end
		case <-n.ended:
			return message{}, ErrEnded
		case <-ctx.Done():
			return message{}, ctx.Err()
		}
	}
}

// Await returns the next milestone of the next agent. An error is that of ctx, or says
// why the next agent cannot serve: the *Reason that it sent, or ErrEnded with its exit
// status.
func (n *Next) Await(ctx context.Context) (Event, error) {
	m, err := n.hear(ctx)
	if errors.Is(err, ErrEnded) {
		return "", holdfast.WithHint(fmt.Errorf("%w: %s", ErrEnded, n.ending()), outputHint)
	}
	return m.Event, err
}

// ending describes how the process has exited.
func (n *Next) ending() string { return n.cmd.ProcessState.String() }

// Hello returns the hello of the next agent.
func (n *Next) Hello() Hello { return n.hello }

// PID returns its process id.
func (n *Next) PID() int { return n.cmd.Process.Pid }

// Go gives the next agent its turn. This process keeps the sockets, too. note is JSON;
// Turn.Take returns it.
func (n *Next) Go(sockets []*listenfd.Socket, note []byte) error {
	names, fds := make([]string, len(sockets)), make([]int, len(sockets))
	for i, s := range sockets {
		names[i], fds[i] = s.Name, s.FD()
	}
	if err := send(n.conn, message{Go: &turn{names, note}}, fds...); err != nil {
		return fmt.Errorf("give the next agent its turn: %w", err)
	}
	return nil
}

// passLimit is how long the next agent may take to receive all connections.
const passLimit = 10 * time.Second

// Pass passes open connections to the next agent, which has said in its hello that it takes
// them. This process keeps its descriptors.
func (n *Next) Pass(conns []connfd.Conn) error {
	if len(conns) == 0 {
		return nil
	}
	if err := n.conn.SetWriteDeadline(time.Now().Add(passLimit)); err != nil {
		return err
	}
	if err := sendConnections(n.conn, conns); err != nil {
		return err
	}
	return n.conn.SetWriteDeadline(time.Time{})
}

// Over tells the next agent that this process does not serve any more, and closes the
// connection.
func (n *Next) Over() error {
	err := send(n.conn, message{Over: true})
	n.conn.Close()
	if err != nil {
		return fmt.Errorf("tell the next agent that the handoff is over: %w", err)
	}
	return nil
}

// Signal sends a signal to the process, which may have exited.
func (n *Next) Signal(s os.Signal) { _ = n.cmd.Process.Signal(s) }

// Kill kills the process and waits for its exit.
func (n *Next) Kill() {
	n.Signal(os.Kill)
	<-n.ended
	n.conn.Close()
}

// Ended is closed when the process has exited.
func (n *Next) Ended() <-chan struct{} { return n.ended }

// ExitCode is the exit code of a process that has exited; -1 where a signal killed it.
func (n *Next) ExitCode() int { return n.cmd.ProcessState.ExitCode() }
