package api

import (
	"io"
	"runtime"
	"runtime/debug"
	"time"

	"holdfast"
)

// Version says which build answers, and where.
type Version struct {
	Version string          `json:"version"` // v1.2.3, or what the build's tree was
	Commit  string          `json:"commit,omitempty"`
	Go      string          `json:"go"`
	OS      string          `json:"os"`
	Arch    string          `json:"arch"`
	Node    holdfast.NodeID `json:"node,omitempty"` // of an agent only
	PID     int             `json:"pid,omitempty"`  // of an agent only
}

// BuildVersion is the version of this very binary, without Node and PID.
func BuildVersion() Version {
	v := Version{Version: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}

// Session is a session's record, and what only its own node knows of it.
type Session struct {
	holdfast.Owner
	Connections int       `json:"connections"`          // open through the gateway
	IdleSince   time.Time `json:"idle_since,omitzero"`  // set while Connections is 0
	LastError   string    `json:"last_error,omitempty"` // of the last boot that failed or container that died
	// Suspended is set of a session in the state suspended: it has no record and no
	// container, and goes on with its memory when somebody connects.
	Suspended *holdfast.Suspended `json:"suspended,omitempty"`
}

// Sessions is the answer to a list of sessions.
type Sessions struct {
	Sessions []Session `json:"sessions"`
}

// Nodes is the answer to a list of nodes.
type Nodes struct {
	Nodes []holdfast.Node `json:"nodes"`
}

// Health is the answer of the probes when all is well.
type Health struct {
	Status string `json:"status"` // ok
}

// Empty is a request without fields.
type Empty struct{}

// StartRequest asks for a session to be started.
type StartRequest struct {
	// Template names what to start; "" leaves the choice to the agent.
	Template string `json:"template,omitempty"`
}

// MoveRequest asks for a session to leave its node. The zero value asks for a new
// container, on another node where one takes it.
type MoveRequest struct {
	// Elsewhere asks for the session to go on on another node, with what it has
	// in memory where its template says so; it stays where no node takes it.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// To names that node; it needs Elsewhere. "" leaves the choice to the agent.
	To holdfast.NodeID `json:"to,omitempty"`
}

// DrainRequest asks a node to hand over everything it owns.
type DrainRequest struct {
	// Budget is how long the drain may take, up to MaxDrainBudget; 0 is the
	// agent's default.
	Budget holdfast.Millis `json:"budget_ms,omitempty"`
	// Quiet says whether the engine is stopped while containers die; absent
	// is the agent's default.
	Quiet *bool `json:"quiet,omitempty"`
	// EngineAll takes every container of the engine, also those that
	// Holdfast did not start.
	EngineAll bool `json:"engine_all,omitempty"`
}

// MaxDrainBudget is the longest drain that can be asked for.
const MaxDrainBudget = time.Hour

// DrainEvent is one line of a drain's answer: a step as it ends, and last of
// all the report. Error stands where the drain could not be done; a Report
// beside it says how far it came.
type DrainEvent struct {
	Step   *holdfast.Step        `json:"step,omitempty"`
	Report *holdfast.DrainReport `json:"report,omitempty"`
	Error  *Error                `json:"error,omitempty"`
}

// StopAgentRequest asks the agent to end.
type StopAgentRequest struct {
	// Keep leaves the containers to the next agent.
	Keep bool `json:"keep,omitempty"`
}

// LogOptions selects log lines.
type LogOptions struct {
	Tail       int // last n lines; below 0 is all
	Follow     bool
	Timestamps bool
}

// Exec is a command to run in a session's container.
type Exec struct {
	Command []string
	TTY     bool
	// Stdin, Stdout and Stderr may be nil. With TTY all output goes to
	// Stdout.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize delivers the terminal's size, and is never closed. A Backend
	// gets it with TTY only, and then always with a first size in it; a
	// client may leave it nil.
	Resize <-chan Size
}

// Size is a terminal's size in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExecRequest opens an exec stream; see package frame for what follows it.
type ExecRequest struct {
	Command []string `json:"command"` // not empty
	TTY     bool     `json:"tty,omitempty"`
	Stdin   bool     `json:"stdin,omitempty"` // stdin frames will come
	Size    *Size    `json:"size,omitempty"`  // of the terminal at first; 80 by 24 where absent
}

func (q ExecRequest) size() Size {
	if q.Size == nil {
		return Size{}
	}
	return *q.Size
}

// ExecExit is the payload of the last frame of an exec stream.
type ExecExit struct {
	ExitCode int    `json:"exit_code"`
	Error    *Error `json:"error,omitempty"` // the command could not be run
}

// Bounds and defaults of replacing sessions.
const (
	MaxReplaceParallel    = 64
	DefaultReplaceTimeout = 5 * time.Minute
	MaxReplaceTimeout     = time.Hour
	MaxReplaced           = 10_000 // sessions in one request
)

// ReplaceRequest asks for sessions to be given new containers: the Keys, all of
// a Node, or All there are; exactly one of the three.
type ReplaceRequest struct {
	Keys []holdfast.SessionKey `json:"keys,omitempty"`
	Node holdfast.NodeID       `json:"node,omitempty"`
	All  bool                  `json:"all,omitempty"`
	// Parallel is how many are replaced at a time, up to
	// MaxReplaceParallel; 0 is 1.
	Parallel int `json:"parallel,omitempty"`
	// Timeout is how long one may take, up to MaxReplaceTimeout; 0 is
	// DefaultReplaceTimeout.
	Timeout holdfast.Millis `json:"timeout_ms,omitempty"`
}

// Replace is a request whose sessions have been found.
type Replace struct {
	Keys     []holdfast.SessionKey // each once
	Parallel int                   // at least 1
	Timeout  time.Duration         // over 0
}

// ReplaceEvent is one line of the answer: a session whose replacement begins,
// one whose has ended, and last of all the report. Error stands where nothing
// could be done.
type ReplaceEvent struct {
	Began  *holdfast.Replacement   `json:"began,omitempty"`
	Ended  *holdfast.Replacement   `json:"ended,omitempty"`
	Report *holdfast.ReplaceReport `json:"report,omitempty"`
	Error  *Error                  `json:"error,omitempty"`
}

// Replacements is the answer to a list of past replacements.
type Replacements struct {
	Replacements []holdfast.Replacement `json:"replacements"`
}
