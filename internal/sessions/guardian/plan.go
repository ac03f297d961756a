package guardian

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/vethnet"
)

// Errors that callers decide by; they come wrapped.
var (
	// ErrUndone means that a plan was carried out before it was disarmed:
	// the deadline passed, or the guardian died.
	ErrUndone = errors.New("it was undone already")
	// ErrNoGuardian means that no guardian stands by, so that nothing risky
	// may begin.
	ErrNoGuardian = errors.New("no guardian stands by")
)

// Kind says what an undo does.
type Kind string

// The kinds of undo. A new kind needs a constant here, a case in perform and one in
// harmless.
const (
	// Continue sends SIGCONT to the processes.
	Continue Kind = "continue"
	// Restore writes back limits of memory cgroups that were lowered.
	Restore Kind = "restore"
	// Thaw thaws the control groups that are noted in a directory when the plan is carried
	// out (package frozen). The starter may freeze groups as long as the plan is armed, so
	// the deadline is farther away than the starter can live. A plan with Thaw has no other
	// undo.
	Thaw Kind = "thaw"
	// Leave removes bridges of containers and their NAT rules once no container is
	// connected, unless another agent has taken them over. That may take as long as a
	// container lives, so the guardian does it last, when its starter is gone, and
	// exits after it. A plan with Leave has no other undo and no deadline.
	Leave Kind = "leave"
)

// harmless reports whether an undo that is not needed does no harm. Such an undo is
// also done by a starter whose guardian has died, or from a file after both have
// died. A stopped process has to run again in any case. A limit is written back only
// if the file still has the lowered value.
func (k Kind) harmless() bool { return k == Continue || k == Restore }

// Undo is one part of a plan.
type Undo struct {
	Kind      Kind
	Processes []*pidfd.Process // of Continue; they stay the caller's
	Limits    []Limit          // of Restore
	Nets      []vethnet.Config // of Leave
	Dir       string           // of Thaw: absolute
}

// Limit is a limit of a memory cgroup that a risky act lowers.
type Limit struct {
	File string `json:"file"` // absolute: …/memory.limit_in_bytes
	// Low is what the act writes, as the kernel shows it, and Old what is
	// written back as long as the file shows Low.
	Low string `json:"low"`
	Old string `json:"old"`
}

// Plan is what the guardian does at the deadline unless the plan is disarmed.
type Plan struct {
	Name     string           // for logs: "stopping the container engine"
	Deadline boottime.Instant // 0 for Leave
	Undo     []Undo           // in this order
	// Wait is how long Arm waits for the guardian's answer; 0 is 250 ms. It is for acts that
	// nothing waits for, on hosts whose CPUs are busy.
	Wait time.Duration
}

// process is a Process as it is written down.
type process struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// written returns the processes as they are written down.
func written(ps []*pidfd.Process) []process {
	var out []process
	for _, p := range ps {
		out = append(out, process{p.Pid(), p.Start()})
	}
	return out
}

// message goes from starter to guardian. The descriptors of Processes travel
// with it (SCM_RIGHTS, unix(7)), in their order.
type message struct {
	Op        op               `json:"op"`
	Seq       uint64           `json:"seq"` // of the question; its answer carries it
	ID        uint64           `json:"id"`
	Name      string           `json:"name,omitempty"`
	Deadline  boottime.Instant `json:"deadline,omitempty"`
	Kind      Kind             `json:"kind,omitempty"`
	Processes []process        `json:"processes,omitempty"`
	Limits    []Limit          `json:"limits,omitempty"`
	Nets      []vethnet.Config `json:"nets,omitempty"`
	Dir       string           `json:"dir,omitempty"`
}

type op string

const (
	opAdd    op = "add"    // append an undo to the plan ID before it is armed; no reply
	opArm    op = "arm"    // the plan is complete and takes effect
	opCheck  op = "check"  // report whether the plan still stands
	opUndo   op = "undo"   // carry it out now and forget it
	opDisarm op = "disarm" // forget the plan
)

// reply goes from guardian to starter, one for each message but add.
type reply struct {
	Seq    uint64 `json:"seq"`
	Error  string `json:"error,omitempty"`
	Undone bool   `json:"undone,omitempty"` // the plan was carried out before
}

const (
	// maxFDs bounds the descriptors of one message: the kernel's
	// SCM_MAX_FD is 253.
	maxFDs = 250
	// maxLimits and maxNets keep a message well under the least socket buffer.
	maxLimits = 8
	maxNets   = 8
	// maxMessage bounds a message; longer ones are refused.
	maxMessage = 128 << 10
	// maxPlans and maxParts bound what a guardian takes on.
	maxPlans = 64
	maxParts = 1024
)

// againAfter is the time between two attempts at a plan that is past its deadline and
// not disarmed.
const againAfter = 100 * time.Millisecond

// messages splits a plan into messages, the last of which arms it. The second result
// has, for each message, the processes whose descriptors travel with it.
func (p Plan) messages(id uint64) ([]message, [][]*pidfd.Process) {
	var ms []message
	var fds [][]*pidfd.Process
	add := func(m message, ps []*pidfd.Process) {
		m.Op, m.ID = opAdd, id
		ms, fds = append(ms, m), append(fds, ps)
	}
	for _, u := range p.Undo {
		for ps := range slices.Chunk(u.Processes, maxFDs) {
			add(message{Kind: u.Kind, Processes: written(ps)}, ps)
		}
		for ls := range slices.Chunk(u.Limits, maxLimits) {
			add(message{Kind: u.Kind, Limits: ls}, nil)
		}
		for ns := range slices.Chunk(u.Nets, maxNets) {
			add(message{Kind: u.Kind, Nets: ns}, nil)
		}
		if u.Dir != "" {
			add(message{Kind: u.Kind, Dir: u.Dir}, nil)
		}
	}
	return append(ms, message{Op: opArm, ID: id, Name: p.Name, Deadline: p.Deadline}), append(fds, nil)
}

// validate refuses what a guardian could not carry out.
func (p Plan) validate() error {
	if p.lasts() != (p.Deadline == 0) || p.Deadline < 0 {
		return fmt.Errorf("plan %q: the deadline %d does not fit what is to be undone", p.Name, p.Deadline)
	}
	for _, u := range p.Undo {
		switch {
		case u.Kind == Continue && len(u.Limits)+len(u.Nets) == 0:
		case u.Kind == Restore && len(u.Processes)+len(u.Nets) == 0:
		case u.Kind == Thaw && len(p.Undo) == 1 && len(u.Processes)+len(u.Limits)+len(u.Nets) == 0 && filepath.IsAbs(u.Dir):
		case u.Kind == Leave && len(p.Undo) == 1 && len(u.Processes)+len(u.Limits) == 0:
		default:
			return fmt.Errorf("plan %q: %d processes, %d limits and %d nets do not fit undo %q",
				p.Name, len(u.Processes), len(u.Limits), len(u.Nets), u.Kind)
		}
		for _, l := range u.Limits {
			if err := l.validate(); err != nil {
				return fmt.Errorf("plan %q: %w", p.Name, err)
			}
		}
	}
	return nil
}

// lasts reports whether the plan is carried out after its starter is gone.
func (p Plan) lasts() bool {
	return slices.ContainsFunc(p.Undo, func(u Undo) bool { return u.Kind == Leave })
}

// validate refuses a file that is not a limit of a memory cgroup: the guardian is
// root and writes to the file that it is told.
func (l Limit) validate() error {
	if !filepath.IsAbs(l.File) || filepath.Clean(l.File) != l.File || len(l.File) > 4096 || filepath.Base(l.File) != "memory.limit_in_bytes" {
		return fmt.Errorf("%q is not a limit of a memory cgroup", l.File)
	}
	for _, v := range []string{l.Low, l.Old} {
		if _, err := strconv.ParseInt(v, 10, 64); err != nil {
			return fmt.Errorf("limit %s: %w", l.File, err)
		}
	}
	return nil
}
