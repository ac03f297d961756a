package handoff

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/platform/linux/listenfd"
)

// Protocol is the version of the messages. The fields of Hello never change their meaning,
// so that an agent can read the hello of another version and refuse it.
const Protocol = 1

// envFD is the environment variable with the child's descriptor of the socket pair.
const envFD = "HOLDFAST_PREDECESSOR"

// maxMessage is the size limit of a message, in bytes.
const maxMessage = 64 << 10

// Hello identifies the next agent. Both agents of a handoff have the same Home: what it
// names belongs to one agent at a time.
type Hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
	Home     Home   `json:"home"`
	// Connections means that the agent takes open connections over.
	Connections bool `json:"connections,omitempty"`
}

// Home is what one agent leaves to the next, beside its sockets.
type Home struct {
	Node    string `json:"node"`
	DataDir string `json:"data_dir"`
	RunDir  string `json:"run_dir"`
	Socket  string `json:"socket"`
}

// differs describes the first field that differs, "" for none.
func (h Home) differs(o Home) string {
	for _, f := range []struct{ name, a, b string }{
		{"node", h.Node, o.Node}, {"data_dir", h.DataDir, o.DataDir}, {"run_dir", h.RunDir, o.RunDir}, {"api.socket", h.Socket, o.Socket},
	} {
		if f.a != f.b {
			return fmt.Sprintf("%s is %q with the next agent, and %q with the running one", f.name, f.b, f.a)
		}
	}
	return ""
}

// Event is a milestone of the next agent.
type Event string

// The events, in their order.
const (
	Held   Event = "held"   // it owns what only one agent may own
	Up     Event = "up"     // it serves
	Ending Event = "ending" // it is ending on request
)

// message is one message of either side.
type message struct {
	// Sent by the next agent.
	Hello *Hello  `json:"hello,omitempty"`
	Event Event   `json:"event,omitempty"`
	Error *Reason `json:"error,omitempty"`
	// Sent by the agent before it.
	Go          *turn   `json:"go,omitempty"`
	Connections *passed `json:"connections,omitempty"`
	Over        bool    `json:"over,omitempty"`
}

// passed accompanies descriptors of connfd.Pack.
type passed struct {
	More bool `json:"more,omitempty"` // further ones follow
}

// turn accompanies the sockets: their names, and a note for the next agent.
type turn struct {
	Names []string        `json:"names"`
	Note  json.RawMessage `json:"note,omitempty"`
}

// Reason says why the next agent cannot serve.
type Reason struct {
	Text   string `json:"error"`
	Advice string `json:"hint,omitempty"`
}

func (r *Reason) Error() string { return r.Text }

// Hint returns advice for the operator, "" for none.
func (r *Reason) Hint() string { return r.Advice }

func send(c *net.UnixConn, m message, fds ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("a message of %d bytes exceeds the limit", len(b))
	}
	return listenfd.Send(c, b, fds)
}

// errGone means that the other agent has closed its end or has exited.
var errGone = errors.New("the other agent is gone")

// receive returns the next message and its descriptors, which the caller owns.
func receive(c *net.UnixConn, buf []byte) (m message, fds []int, err error) {
	n, fds, err := listenfd.Receive(c, buf)
	if err != nil || n == 0 {
		return m, nil, errors.Join(errGone, err)
	}
	if err := json.Unmarshal(buf[:n], &m); err != nil {
		connfd.Conn{FDs: fds}.Close()
		return m, nil, err
	}
	return m, fds, nil
}
