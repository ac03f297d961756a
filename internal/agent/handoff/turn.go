package handoff

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/platform/linux/listenfd"
)

// Turn is the next agent's side of a handoff. An agent that was not started by another
// one has a nil *Turn, whose methods do nothing.
type Turn struct {
	conn     *net.UnixConn
	over     chan struct{}
	taken    bool
	orphaned bool // set before over is closed
	failing  sync.Once
}

// Inherit returns the Turn of a process that another agent has started, and nil in any
// other process. It may be called once.
func Inherit() (*Turn, error) {
	text := os.Getenv(envFD)
	if text == "" {
		return nil, nil
	}
	if err := os.Unsetenv(envFD); err != nil { // children must not inherit it
		return nil, err
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s is %q, which is not a descriptor", envFD, text)
	}
	unix.CloseOnExec(fd)
	conn, err := child.Adopt(fd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", envFD, err)
	}
	return &Turn{conn: conn, over: make(chan struct{})}, nil
}

// errUnwanted ends an agent that was not given its turn.
var errUnwanted = errors.New("the agent that started this one continues to serve")

// Take sends the hello and waits for the turn. It returns the sockets, which the caller
// then owns, and the note. Open connections of the other agent arrive in conns later. Until
// Take returns, the caller must not use anything that belongs to one agent at a time.
func (t *Turn) Take(ctx context.Context, version string, home Home, conns *Connections) ([]*listenfd.Socket, []byte, error) {
	if t == nil {
		return nil, nil, nil
	}
	if err := send(t.conn, message{Hello: &Hello{Protocol, version, home, true}}); err != nil {
		return nil, nil, fmt.Errorf("send the hello to the previous agent: %w", err)
	}
	// The end of ctx is not waited for: the other agent ends the wait, too.
	stop := context.AfterFunc(ctx, func() { _ = t.conn.CloseRead() })
	m, fds, err := receive(t.conn, make([]byte, maxMessage))
	ended := !stop()
	if ended || err != nil || m.Go == nil {
		connfd.Conn{FDs: fds}.Close()
	}
	switch {
	case ended:
		return nil, nil, context.Cause(ctx)
	case errors.Is(err, errGone), err == nil && m.Go == nil:
		return nil, nil, errUnwanted
	case err != nil:
		return nil, nil, fmt.Errorf("take over from the previous agent: %w", err)
	}
	sockets, err := listenfd.Adopt(fds, m.Go.Names)
	if err != nil {
		return nil, nil, fmt.Errorf("take over from the previous agent: %w", err)
	}
	t.taken = true
	go t.await(conns)
	return sockets, m.Go.Note, nil
}

// await receives connections until the other agent sends Over, or exits.
func (t *Turn) await(conns *Connections) {
	defer close(t.over)
	var r receiver
	defer r.close()
	for buf := make([]byte, maxMessage); ; {
		m, fds, err := receive(t.conn, buf)
		if err != nil || m.Connections == nil {
			connfd.Conn{FDs: fds}.Close()
			t.orphaned = err != nil || !m.Over
			return
		}
		got, err := r.add(*m.Connections, fds)
		if err != nil {
			conns.log.Error("the open connections of the previous agent are lost", "err", err)
		}
		conns.Put(got)
	}
}

// Say reports a milestone to the other agent. A failure means that the other agent has
// exited, and is ignored.
func (t *Turn) Say(e Event) {
	if t != nil {
		_ = send(t.conn, message{Event: e})
	}
}

// Fail reports to the other agent why this one cannot serve. Only the first call has an
// effect.
func (t *Turn) Fail(err error) {
	if t == nil || err == nil {
		return
	}
	t.failing.Do(func() {
		_ = send(t.conn, message{Error: &Reason{err.Error(), holdfast.HintOf(err)}})
	})
}

// Over is closed, after Take, when the other agent has sent Over or has exited. It is
// nil on a nil *Turn.
func (t *Turn) Over() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.over
}

// Orphaned reports, once Over is closed, whether the other agent exited without sending
// Over: it was killed.
func (t *Turn) Orphaned() bool { return t.orphaned }

// Close closes the connection to the other agent.
func (t *Turn) Close() {
	if t == nil {
		return
	}
	_ = t.conn.CloseRead() // ends await
	if t.taken {
		<-t.over
	}
	t.conn.Close()
}
