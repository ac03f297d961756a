package handoff

import (
	"fmt"
	"log/slog"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/platform/linux/listenfd"
	"holdfast/internal/platform/tasks"
)

// Connections are the open connections of clients that one agent of a host leaves to the next
// one, which is in this process or in another. Any goroutine may use them.
type Connections struct {
	arrived tasks.Signal
	log     *slog.Logger

	mu      sync.Mutex
	waiting []connfd.Conn
}

// NewConnections returns an empty set.
func NewConnections(log *slog.Logger) *Connections {
	return &Connections{arrived: tasks.NewSignal(), log: log}
}

// Put leaves connections to the next agent.
func (c *Connections) Put(conns []connfd.Conn) {
	if len(conns) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, conns...)
	c.arrived.Set()
}

// Arrived is signaled when there are connections to take.
func (c *Connections) Arrived() <-chan struct{} { return c.arrived }

// Take returns the connections, which the caller owns from now on.
func (c *Connections) Take() []connfd.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	conns := c.waiting
	c.waiting = nil
	return conns
}

// close closes the connections that no agent has taken.
func (c *Connections) close() {
	for _, conn := range c.Take() {
		conn.Close()
	}
}

// sendConnections passes connections to the next agent. This process keeps its descriptors.
func sendConnections(to *net.UnixConn, conns []connfd.Conn) error {
	fds, err := connfd.Pack(conns)
	if err != nil {
		return err
	}
	defer unix.Close(fds[0])
	for len(fds) > 0 {
		n := min(len(fds), listenfd.Most)
		if err := send(to, message{Connections: &passed{More: n < len(fds)}}, fds[:n]...); err != nil {
			return fmt.Errorf("pass %d connections on: %w", len(conns), err)
		}
		fds = fds[n:]
	}
	return nil
}

// receiver collects the descriptors of connections, which arrive in several messages.
type receiver struct{ fds []int }

// add takes the descriptors of one message over. It returns the connections with the last one.
func (r *receiver) add(p passed, fds []int) ([]connfd.Conn, error) {
	r.fds = append(r.fds, fds...)
	if p.More {
		return nil, nil
	}
	fds, r.fds = r.fds, nil
	return connfd.Unpack(fds)
}

// close closes the descriptors of connections that did not arrive completely.
func (r *receiver) close() { connfd.Conn{FDs: r.fds}.Close() }
