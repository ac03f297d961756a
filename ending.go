package holdfast

import (
	"fmt"
	"strings"
	"time"
)

// EndReason is why an epoch of a session has ended.
type EndReason string

// The reasons.
const (
	EndExited     EndReason = "exited"      // its container ended by itself, or by a signal from outside of Holdfast
	EndOOM        EndReason = "oom"         // the kernel killed its container's init for the memory limit
	EndEngine     EndReason = "engine"      // the engine has stopped its container
	EndStopped    EndReason = "stopped"     // a user has stopped it
	EndIdle       EndReason = "idle"        // no client was connected and no command ran for sessions.idle_stop
	EndSuspended  EndReason = "suspended"   // its memory is kept for the next connect
	EndDrained    EndReason = "drained"     // its node was drained
	EndMoved      EndReason = "moved"       // a user has moved it to another node
	EndReplaced   EndReason = "replaced"    // it gets a new container
	EndFenced     EndReason = "fenced"      // its node could not renew its lease
	EndDisowned   EndReason = "disowned"    // its record was gone or belonged to another claim
	EndBootFailed EndReason = "boot-failed" // its container did not become ready
	EndNodeLost   EndReason = "node-lost"   // its node's lease expired; another node has seen that
	EndUnknown    EndReason = "unknown"     // its agent ended before it could tell
)

// EndReasons lists all reasons.
func EndReasons() []EndReason {
	return []EndReason{EndExited, EndOOM, EndEngine, EndStopped, EndIdle, EndSuspended, EndDrained, EndMoved, EndReplaced, EndFenced, EndDisowned, EndBootFailed, EndNodeLost, EndUnknown}
}

// EndedBy is the component that has ended an epoch of a session.
type EndedBy string

// The components.
const (
	ByContainer   EndedBy = "container" // the session's own program
	ByKernel      EndedBy = "kernel"
	ByEngine      EndedBy = "engine"
	ByUser        EndedBy = "user" // a request to the API
	ByIdleStop    EndedBy = "idle-stop"
	ByDrain       EndedBy = "drain"
	ByReplacement EndedBy = "replacement"
	ByFence       EndedBy = "fence" // of the node's own agent
	ByDeadman     EndedBy = "deadman"
	ByLease       EndedBy = "lease" // it expired, with its node
	ByAgent       EndedBy = "agent" // another part of the agent
)

// Bounds of an Ending.
const (
	MaxEndLog   = 8 << 10 // bytes of Log
	MaxEndLines = 50      // lines of Log
	MaxEndError = 2 << 10 // bytes of Error
	MaxSamples  = 60      // of the memory
)

// Ending is how one epoch of a session ended. Reason and By are always set.
type Ending struct {
	Key         SessionKey `json:"key"`
	Node        NodeID     `json:"node"`
	Epoch       Epoch      `json:"epoch,omitempty"` // 0 if it was not claimed
	Template    string     `json:"template,omitempty"`
	ContainerID string     `json:"container_id,omitempty"`
	ReadyAt     time.Time  `json:"ready_at,omitzero"` // if it was ready
	At          time.Time  `json:"at"`                // when it ended, as far as its node knows
	Reason      EndReason  `json:"reason"`
	By          EndedBy    `json:"by"`
	// ExitCode is that of the container's init, if it ended by itself and the engine has
	// told. For a signal it is 128 and the signal's number.
	ExitCode *int   `json:"exit_code,omitempty"`
	Signal   string `json:"signal,omitempty"` // such as SIGKILL, if ExitCode says so
	// OOMKills is how many processes of the container the kernel has killed for its
	// memory limit. The init may not be among them.
	OOMKills int            `json:"oom_kills,omitempty"`
	Memory   *MemoryHistory `json:"memory,omitempty"`
	Phase    string         `json:"phase,omitempty"` // of the boot that failed
	Error    string         `json:"error,omitempty"` // of the boot, of the suspension or of the engine
	// Log is the container's last lines, if its boot has failed: at most MaxEndLines and
	// MaxEndLog bytes.
	Log string `json:"log,omitempty"`
	// SeenBy is the node that has recorded the loss of Node; "" if Node has recorded it.
	SeenBy NodeID `json:"seen_by,omitempty"`
}

// MemoryHistory is the memory of a container before its end, in bytes.
type MemoryHistory struct {
	Limit   int64          `json:"limit,omitempty"` // 0: none
	Peak    int64          `json:"peak,omitempty"`  // the most, as the kernel has counted; 0: unknown
	Samples []MemorySample `json:"samples"`         // the last ones, the oldest first
}

// MemorySample is the memory of a container at one moment.
type MemorySample struct {
	At    time.Time `json:"at"`
	Bytes int64     `json:"bytes"`
}

// Usage is what a session's container uses.
type Usage struct {
	MemoryLimit int64         `json:"memory_limit,omitempty"` // bytes; 0: none
	PageCache   int64         `json:"page_cache"`             // part of the memory now, bytes
	Samples     []UsageSample `json:"samples"`                // the last MaxSamples, the oldest first
}

// UsageSample is what a container uses at one moment.
type UsageSample struct {
	At     time.Time `json:"at"`
	Memory int64     `json:"memory"` // bytes
	CPU    Millis    `json:"cpu_ms"` // CPU time of all its processes since its start; 0 if unknown
}

// Text describes the end in a few words, for operators.
func (e Ending) Text() string {
	var b strings.Builder
	switch e.Reason {
	case EndExited:
		b.WriteString("its container ended")
		if e.Signal != "" {
			b.Reset()
			b.WriteString("its container was killed by " + e.Signal)
		} else if e.ExitCode != nil {
			fmt.Fprintf(&b, " with exit code %d", *e.ExitCode)
		}
	case EndOOM:
		b.WriteString("its container ran out of memory")
	case EndEngine:
		b.WriteString("the engine stopped its container")
	case EndStopped:
		b.WriteString("a user stopped it")
	case EndIdle:
		b.WriteString("it was idle")
	case EndSuspended:
		b.WriteString("it was suspended")
		if e.By == ByIdleStop {
			b.WriteString(" because it was idle")
		}
	case EndDrained:
		b.WriteString("its node was drained")
	case EndMoved:
		b.WriteString("a user moved it to another node")
	case EndReplaced:
		b.WriteString("it was replaced")
	case EndFenced:
		b.WriteString("its node could not renew its lease")
		if e.By == ByDeadman {
			b.WriteString("; the deadman killed it")
		}
	case EndDisowned:
		b.WriteString("its record was gone, or another claim's")
	case EndBootFailed:
		b.WriteString("it did not boot")
		if e.Phase != "" {
			b.WriteString(" (" + e.Phase + ")")
		}
	case EndNodeLost:
		b.WriteString("its node was lost")
	default:
		b.WriteString("its agent ended before it could tell")
	}
	if e.OOMKills > 0 && e.Reason != EndOOM {
		fmt.Fprintf(&b, "; %d of its processes ran out of memory", e.OOMKills)
	}
	if e.Error != "" {
		b.WriteString(": " + e.Error)
	}
	return b.String()
}

// EndingReport is the answer of a fleet to a question about endings.
type EndingReport struct {
	Endings  []Ending      `json:"endings"`   // the newest first
	NoAnswer []MissingNode `json:"no_answer"` // nodes that did not answer
}

// MissingNode is a node that did not answer.
type MissingNode struct {
	Node NodeID `json:"node"`
	Why  string `json:"why"`
}

// EventType is what happened to a session.
type EventType string

// The types. Each epoch that has begun ends with one of the last three.
const (
	EventRequested EventType = "requested" // a request for a session that does not run; the node will claim it
	EventBoot      EventType = "boot"      // the node has claimed it, and starts its container
	EventResumed   EventType = "resumed"   // its memory is back; the event ready follows
	EventReady     EventType = "ready"
	EventSuspended EventType = "suspended"
	EventMoved     EventType = "moved"
	EventEnded     EventType = "ended"
	// EventLost is for one reader of events: it has missed some.
	EventLost EventType = "lost"
)

// SessionEvent is one event of a session.
type SessionEvent struct {
	// ID numbers the events of a node without gaps, also over restarts of its agent. Of
	// an event lost it is the last one that was lost.
	ID       int64      `json:"id"`
	At       time.Time  `json:"at,omitzero"`
	Type     EventType  `json:"type"`
	Key      SessionKey `json:"key,omitempty"`
	Node     NodeID     `json:"node,omitempty"`
	Epoch    Epoch      `json:"epoch,omitempty"`
	Template string     `json:"template,omitempty"`
	Took     Millis     `json:"took_ms,omitempty"` // of an event ready: the boot
	// Ending is set for the last event of an epoch, without its Log and Memory.
	Ending *Ending `json:"ending,omitempty"`
	// Lost is the number of events that the reader has missed; below 0: unknown.
	Lost int64 `json:"lost,omitempty"`
}
