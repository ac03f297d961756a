// Package deadman kills a node's containers when its agent can no longer renew
// the node's lease: a separate small process of the same binary, which the agent
// tells what runs and until when. It acts on that deadline and on nothing else,
// so it does not matter whether the agent was killed, hangs, was stopped, or
// waits for a dead store. It outlives the agent, and the next one attaches to it.
//
// The two talk over a SOCK_SEQPACKET socket (unix(7)) in the agent's run
// directory, in JSON: one request, one answer. docs/adr/deadman.md says why it
// is as it is.
package deadman

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/sessions/kill"
)

// protocol is the version that this program speaks. A deadman of another one
// answers hello, list and stand-down only: these three never change, so that
// what it holds can be moved.
const protocol = 2

// Errors that callers decide by; they come wrapped.
var (
	// ErrNone means that no deadman stands behind this node, so that nothing
	// new may start.
	ErrNone = errors.New("no deadman stands by")
	// ErrSuperseded means that another agent controls the deadman now.
	ErrSuperseded = errors.New("another agent has taken the deadman over")
	// ErrOverdue means that the deadline has passed, or that there is none
	// yet: what started now would be killed at once, or never.
	ErrOverdue = errors.New("the deadline of this node's containers is not in the future")
	// ErrOtherNode means that the deadman of the run directory has containers
	// of another node.
	ErrOtherNode = errors.New("this run directory is another node's")
	// ErrHolds means that a deadman that still has containers was told to end.
	ErrHolds = errors.New("the deadman still holds containers")
)

// Bounds.
const (
	maxMessage    = 64 << 10 // bytes, under the least socket buffer
	maxIDLen      = 128
	maxNameLen    = 255
	maxContainers = 10_000 // on one node
	batch         = 100    // containers in one message: 100 × (128 + 255 + …) is under maxMessage
)

type op string

const (
	opHello     op = "hello"      // who are you, what do you have; its sender controls from then on
	opList      op = "list"       // a batch of what you have, from From on
	opStandDown op = "stand-down" // end, if you have nothing, or all of it was Moved
	opExpect    op = "expect"     // a container is about to start
	opHold      op = "hold"       // it runs
	opForget    op = "forget"     // these are dead, or will not start
	opExtend    op = "extend"     // another deadline
)

// request goes to the deadman; each gets one answer.
type request struct {
	Op        op               `json:"op"`
	Seq       uint64           `json:"seq"`
	Version   int              `json:"version,omitempty"`   // of hello: the sender's protocol
	Node      holdfast.NodeID  `json:"node,omitempty"`      // of hello: the sender's, since version 2
	From      int              `json:"from,omitempty"`      // of list
	Moved     bool             `json:"moved,omitempty"`     // of stand-down: another one has it all; of expect: from another one
	Container *container       `json:"container,omitempty"` // of expect and hold
	IDs       []string         `json:"ids,omitempty"`       // of forget
	Deadline  boottime.Instant `json:"deadline,omitempty"`  // of extend
}

// container is one that is expected (no pid) or held.
type container struct {
	ID    string `json:"id"` // kill.Searchable
	Name  string `json:"name,omitempty"`
	Pid   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"` // of init, in ticks after boot

	// Condemned is of one that was there when a deadline passed: it dies,
	// whatever the deadline is now.
	Condemned bool `json:"condemned,omitempty"`

	// doubtful is for the agent's eyes: a deadline has passed, and no deadman
	// has said since what it condemned.
	doubtful bool
}

// reply goes to the agent. One without a Seq says that another agent has taken
// over, and is the last.
type reply struct {
	Seq    uint64      `json:"seq,omitempty"`
	Error  string      `json:"error,omitempty"`
	Code   code        `json:"code,omitempty"`
	Status *status     `json:"status,omitempty"` // of hello
	List   []container `json:"list,omitempty"`
	Fired  *Fired      `json:"fired,omitempty"` // of hello and extend: what it did since it was told last

	Condemned bool `json:"condemned,omitempty"` // of extend: something of what it has is
}

// code names the error that a caller can decide by.
type code string

const (
	codeOverdue code = "overdue"
	codeHolds   code = "holds"
	codeOther   code = "other-node" // its Status says which
)

func codeOf(err error) code {
	switch {
	case errors.Is(err, ErrOverdue):
		return codeOverdue
	case errors.Is(err, ErrHolds):
		return codeHolds
	case errors.Is(err, ErrOtherNode):
		return codeOther
	}
	return ""
}

func (c code) err() error {
	switch c {
	case codeOverdue:
		return ErrOverdue
	case codeHolds:
		return ErrHolds
	case codeOther:
		return ErrOtherNode
	}
	return nil
}

// status is what a deadman says of itself.
type status struct {
	Version  int              `json:"version"`
	Node     holdfast.NodeID  `json:"node,omitempty"`     // that it stands behind
	Deadline boottime.Instant `json:"deadline,omitempty"` // 0: none was set
	Held     int              `json:"held"`
	Expected int              `json:"expected"`
}

// Fired is what a deadman did when its deadline had passed.
type Fired struct {
	Deadline boottime.Instant `json:"deadline"`        // that had passed
	At       boottime.Instant `json:"at"`              // when it acted first
	Dead     int              `json:"dead"`            // containers that it held, seen dead
	Found    int              `json:"found"`           // containers that it expected, found and killed
	Left     int              `json:"left"`            // containers that it could not see dead yet
	Names    []string         `json:"names,omitempty"` // of some of them
}

// maxNames bounds Fired.Names.
const maxNames = 20

func (f *Fired) name(s string) {
	if len(f.Names) < maxNames {
		f.Names = append(f.Names, s)
	}
}

// check refuses what no agent of this version sends.
func (r request) check() error {
	switch r.Op {
	case opHello:
		if n := string(r.Node); n != plain(n) {
			return errors.New("a node id that is none")
		}
		return nil
	case opStandDown:
		return nil
	case opList:
		if r.From < 0 {
			return errors.New("a list from below 0")
		}
		return nil
	case opExpect, opHold:
		if r.Container == nil {
			return errors.New("no container")
		}
		return r.Container.check(r.Op == opHold)
	case opForget:
		for _, id := range r.IDs {
			if len(id) > maxIDLen {
				return errors.New("an id is too long")
			}
		}
		if len(r.IDs) > batch {
			return fmt.Errorf("%d ids, at most %d are allowed", len(r.IDs), batch)
		}
		return nil
	case opExtend:
		if r.Deadline <= 0 {
			return errors.New("no deadline")
		}
		return nil
	}
	return fmt.Errorf("unknown request %q", r.Op)
}

func (c container) check(running bool) error {
	switch {
	case !kill.Searchable(c.ID) || len(c.ID) > maxIDLen:
		// By anything else it could be confused with other control groups.
		return fmt.Errorf("container id %.20q is not 12 to %d hex digits", c.ID, maxIDLen)
	case len(c.Name) > maxNameLen:
		return fmt.Errorf("the name of container %.12s has %d bytes, at most %d are allowed", c.ID, len(c.Name), maxNameLen)
	case c.Name != plain(c.Name):
		return fmt.Errorf("the name of container %.12s is %q", c.ID, c.Name)
	case running && (c.Pid <= 1 || c.Start == 0):
		return fmt.Errorf("container %.12s: pid %d, start %d", c.ID, c.Pid, c.Start)
	}
	return nil
}

// plain is a name as it goes into messages: JSON makes no byte of it longer.
func plain(name string) string {
	name = name[:min(len(name), maxNameLen)]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) {
			return '?'
		}
		return r
	}, name)
}

func parseRequest(b []byte) (request, error) {
	var r request
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("read a request: %w", err)
	}
	return r, nil
}
