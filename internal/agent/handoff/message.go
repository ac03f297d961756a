// Package handoff is how one agent takes over from another on the same host
// without a moment in which nobody would: the one that runs starts the next one
// as a child, hears from it who it is, ends all that only one of them may have,
// and then gives it its turn, with the sockets that clients connect to. It waits
// until the other serves. If that fails it can serve again itself: it still has
// the sockets, in which who connected meanwhile is waiting.
//
// The two talk over a socket pair that the child inherits. The package knows
// nothing of what an agent does.
package handoff

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/listenfd"
)

// Protocol is the version of what the two say to each other. What a hello has
// never changes its meaning; a process of another version is told so and ends.
const Protocol = 1

// envFD names the child's end of the pair, a descriptor.
const envFD = "HOLDFAST_PREDECESSOR"

// maxMessage bounds a message, in bytes.
const maxMessage = 64 << 10

// Hello says who the next agent is. Both agents of a succession have the same
// Home: what it names belongs to one agent at a time.
type Hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
	Home     Home   `json:"home"`
}

// Home is what one agent hands on to the next, beside its sockets.
type Home struct {
	Node    string `json:"node"`
	DataDir string `json:"data_dir"`
	RunDir  string `json:"run_dir"`
	Socket  string `json:"socket"`
}

// differs names what is not the same, "" for nothing.
func (h Home) differs(o Home) string {
	for _, f := range []struct{ name, a, b string }{
		{"node", h.Node, o.Node}, {"data_dir", h.DataDir, o.DataDir}, {"run_dir", h.RunDir, o.RunDir}, {"api.socket", h.Socket, o.Socket},
	} {
		if f.a != f.b {
			return fmt.Sprintf("%s is %q with the next agent, and %q with the one that runs", f.name, f.b, f.a)
		}
	}
	return ""
}

// Event is how far the next agent is.
type Event string

// The events, in their order.
const (
	Held   Event = "held"   // it has what only one may have
	Up     Event = "up"     // it serves
	Ending Event = "ending" // it was told to end, and will
)

// message is what either says.
type message struct {
	// The next agent's.
	Hello *Hello  `json:"hello,omitempty"`
	Event Event   `json:"event,omitempty"`
	Error *Reason `json:"error,omitempty"`
	// The one before's.
	Go   *turn `json:"go,omitempty"`
	Over bool  `json:"over,omitempty"`
}

// turn is what comes with the turn: the sockets' names, and a note from one
// agent to the next.
type turn struct {
	Names []string        `json:"names"`
	Note  json.RawMessage `json:"note,omitempty"`
}

// Reason is why the next agent could not serve.
type Reason struct {
	Text   string `json:"error"`
	Advice string `json:"hint,omitempty"`
}

func (r *Reason) Error() string { return r.Text }

// Hint says what to do about it.
func (r *Reason) Hint() string { return r.Advice }

func send(c *net.UnixConn, m message, sockets ...*listenfd.Socket) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("a message of %d bytes is too long", len(b))
	}
	return listenfd.Send(c, b, sockets)
}

// errGone means that the other one has closed its end, or is dead.
var errGone = errors.New("the other agent is gone")

// receive returns the next message; descriptors that come with any but a turn
// are closed.
func receive(c *net.UnixConn, buf []byte) (m message, sockets []*listenfd.Socket, err error) {
	n, fds, err := listenfd.Receive(c, buf)
	if err != nil || n == 0 {
		return m, nil, errors.Join(errGone, err)
	}
	if err := json.Unmarshal(buf[:n], &m); err != nil || m.Go == nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return m, nil, err
	}
	sockets, err = listenfd.Adopt(fds, m.Go.Names)
	return m, sockets, err
}
