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
	"holdfast/internal/platform/linux/listenfd"
)

// Turn is the next agent's side: its place after the one that started it. All
// methods do nothing on a nil *Turn, which an agent has that came by itself.
type Turn struct {
	conn     *net.UnixConn
	over     chan struct{}
	taken    bool
	orphaned bool // set before over is closed
	failing  sync.Once
}

// Inherit returns the turn of a process that another agent has started, and nil
// in any other. It may be called once.
func Inherit() (*Turn, error) {
	text := os.Getenv(envFD)
	if text == "" {
		return nil, nil
	}
	if err := os.Unsetenv(envFD); err != nil { // it is not for our children
		return nil, err
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s is %q, it has to be a descriptor", envFD, text)
	}
	unix.CloseOnExec(fd)
	conn, err := child.Adopt(fd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", envFD, err)
	}
	return &Turn{conn: conn, over: make(chan struct{})}, nil
}

// errUnwanted is why an agent ends whose turn never came.
var errUnwanted = errors.New("the agent that started this one goes on itself")

// Take says hello and waits for the turn. It returns the sockets, which are the
// caller's, and the other's note. Before it returns, nothing may be touched that
// belongs to one agent at a time.
func (t *Turn) Take(ctx context.Context, version string, home Home) ([]*listenfd.Socket, []byte, error) {
	if t == nil {
		return nil, nil, nil
	}
	if err := send(t.conn, message{Hello: &Hello{Protocol, version, home}}); err != nil {
		return nil, nil, fmt.Errorf("greet the agent before this one: %w", err)
	}
	// The end of ctx is not waited for here: it ends with the other one, too.
	stop := context.AfterFunc(ctx, func() { _ = t.conn.CloseRead() })
	m, sockets, err := receive(t.conn, make([]byte, maxMessage))
	if !stop() {
		return nil, nil, context.Cause(ctx)
	}
	if errors.Is(err, errGone) || err == nil && m.Go == nil {
		return nil, nil, errUnwanted
	}
	if err != nil {
		return nil, nil, fmt.Errorf("take over from the agent before this one: %w", err)
	}
	t.taken = true
	go t.await()
	return sockets, m.Go.Note, nil
}

// await waits until the other one lets go, or is gone.
func (t *Turn) await() {
	m, _, err := receive(t.conn, make([]byte, maxMessage))
	t.orphaned = err != nil || !m.Over
	close(t.over)
}

// Say tells the other one how far this one is. Where it is gone, it need not
// know.
func (t *Turn) Say(e Event) {
	if t != nil {
		_ = send(t.conn, message{Event: e})
	}
}

// Fail tells the other one why this one cannot serve; only the first time
// counts.
func (t *Turn) Fail(err error) {
	if t == nil || err == nil {
		return
	}
	t.failing.Do(func() {
		_ = send(t.conn, message{Error: &Reason{err.Error(), holdfast.HintOf(err)}})
	})
}

// Over is closed, after Take, when the other one is out of the way. It is nil,
// which is never, without another one.
func (t *Turn) Over() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.over
}

// Orphaned reports, once Over is closed, whether the other one ended without a
// word: somebody has killed it.
func (t *Turn) Orphaned() bool { return t.orphaned }

// Close ends it.
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
