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

// protocol is the version that this program speaks. A deadman of another version
// answers hello, list and stand-down only. These three never change, so that its
// containers can be moved to a deadman of this version.
const protocol = 2

// Errors that callers decide by; they come wrapped.
var (
	// ErrNone means that this node has no deadman, so that no container may start.
	ErrNone = errors.New("no deadman stands by")
	// ErrSuperseded means that another agent controls the deadman now.
	ErrSuperseded = errors.New("another agent has taken the deadman over")
	// ErrOverdue means that the deadline has passed, or that there is none yet: a
	// container that started now would be killed at once, or never.
	ErrOverdue = errors.New("the deadline of this node's containers is not in the future")
	// ErrOtherNode means that the deadman of the run directory has containers
	// of another node.
	ErrOtherNode = errors.New("this run directory is another node's")
	// ErrHolds means that a deadman that was told to exit still has containers.
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
	opHello     op = "hello"      // returns the status; the sender controls the deadman from then on
	opList      op = "list"       // returns a batch of the containers, from index From on
	opStandDown op = "stand-down" // exit, if there are no containers or all were Moved
	opExpect    op = "expect"     // a container is about to start
	opHold      op = "hold"       // it runs
	opForget    op = "forget"     // these containers are dead or will not start
	opExtend    op = "extend"     // another deadline
)

// request goes to the deadman; each gets one answer.
type request struct {
	Op        op               `json:"op"`
	Seq       uint64           `json:"seq"`
	Version   int              `json:"version,omitempty"`   // of hello: the sender's protocol
	Node      holdfast.NodeID  `json:"node,omitempty"`      // of hello: the sender's, since version 2
	From      int              `json:"from,omitempty"`      // of list
	Moved     bool             `json:"moved,omitempty"`     // of stand-down: another deadman has all containers; of expect: it comes from another deadman
	Container *container       `json:"container,omitempty"` // of expect and hold
	IDs       []string         `json:"ids,omitempty"`       // of forget
	Deadline  boottime.Instant `json:"deadline,omitempty"`  // of extend
}

// container is an expected container, without a pid, or a held one.
type container struct {
	ID    string `json:"id"` // kill.Searchable
	Name  string `json:"name,omitempty"`
	Pid   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"` // of init, in ticks after boot

	// Expired means that the container was there when a deadline passed. It will be
	// killed, whatever the deadline is now.
	Expired bool `json:"expired,omitempty"`

	// doubtful is known to the agent only: a deadline has passed, and no deadman has
	// reported since which containers have expired.
	doubtful bool
}

// reply goes to the agent. A reply without a Seq means that another agent has taken
// over; it is the last one.
type reply struct {
	Seq    uint64      `json:"seq,omitempty"`
	Error  string      `json:"error,omitempty"`
	Code   code        `json:"code,omitempty"`
	Status *status     `json:"status,omitempty"` // of hello
	List   []container `json:"list,omitempty"`
	Fired  *Fired      `json:"fired,omitempty"` // of hello and extend: what the deadman did since the last report

	Expired bool `json:"expired,omitempty"` // of extend: at least one container is expired
}

// code names the error that a caller can decide by.
type code string

const (
	codeOverdue code = "overdue"
	codeHolds   code = "holds"
	codeOther   code = "other-node" // Status names the node
)

// coded are the errors that have a code.
var coded = map[code]error{codeOverdue: ErrOverdue, codeHolds: ErrHolds, codeOther: ErrOtherNode}

func codeOf(err error) code {
	for c, e := range coded {
		if errors.Is(err, e) {
			return c
		}
	}
	return ""
}

// status is a deadman's state.
type status struct {
	Version  int              `json:"version"`
	Node     holdfast.NodeID  `json:"node,omitempty"`     // whose containers it kills
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

// check refuses requests that no agent of this version sends.
func (r request) check() error {
	switch r.Op {
	case opHello:
		if n := string(r.Node); n != plain(n) {
			return errors.New("the node id is not valid")
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
		// Other ids could match control groups that are no container's.
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

// plain is a name with the bytes removed that JSON would escape into longer ones.
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
