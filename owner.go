package holdfast

import (
	"fmt"
	"time"
)

// NodeID names a host with an agent. It is unique in a fleet.
type NodeID string

// Epoch is the store's revision of a claim. It only grows, over all keys, and
// is the fencing token: whoever serves a session with a smaller epoch is the
// past. It reaches the container as HOLDFAST_EPOCH.
type Epoch int64

// Revision is the store's revision of a record's last write; every write to a
// record names the revision it has seen.
type Revision int64

// State is how far a session has come. It only moves forward:
// claimed → starting → ready → leaving.
type State string

// The states, in their order.
const (
	Claimed  State = "claimed"  // the record is ours, nothing runs yet
	Starting State = "starting" // the container is being created and started
	Ready    State = "ready"    // the container answers; Address is set
	Leaving  State = "leaving"  // the container is being stopped or handed over
)

// IsSuspended is the state that a session has in lists which nobody serves, and which
// goes on with its memory at the next connect. It has no record.
const IsSuspended State = "suspended"

// order is the position of a state, 0 for an unknown one.
func (s State) order() int {
	switch s {
	case Claimed:
		return 1
	case Starting:
		return 2
	case Ready:
		return 3
	case Leaving:
		return 4
	}
	return 0
}

// CanBecome reports whether a record may go from s to next. A record may be
// written again in the state it has.
func (s State) CanBecome(next State) bool {
	return s.order() > 0 && next.order() >= s.order()
}

// Owner is the record of one session: who serves it, since which epoch, and
// where. It is a value; the store hands out copies.
type Owner struct {
	Key         SessionKey `json:"key"`
	Node        NodeID     `json:"node"`
	Epoch       Epoch      `json:"epoch"`    // set by the store at the claim
	Revision    Revision   `json:"revision"` // set by the store at each write
	State       State      `json:"state"`
	Template    string     `json:"template"`
	ContainerID string     `json:"container_id,omitempty"` // the engine's full id, from Starting on
	Address     string     `json:"address,omitempty"`      // host:port that the session's server listens on, from Ready on
	ClaimedAt   time.Time  `json:"claimed_at"`
	ReadyAt     time.Time  `json:"ready_at,omitzero"`
	Boot        Phases     `json:"boot,omitzero"` // from Ready on
	// Memory says, from Ready on, whether the session goes on from what the life
	// before had in memory, or why it does not; "" where there was nothing.
	Memory string `json:"memory,omitempty"`
	// SuspendNote is what Suspend left behind for this claim. It is only in what the
	// claim returns.
	SuspendNote string `json:"-"`
}

// Restored is Owner.Memory of a session that goes on with its memory.
const Restored = "restored"

// Suspended is a session that nobody serves, and whose memory is kept for the next
// who connects.
type Suspended struct {
	Key      SessionKey `json:"key"`
	Epoch    Epoch      `json:"epoch"`            // of the life that the image is of
	Node     NodeID     `json:"node"`             // that has the image
	Shared   bool       `json:"shared,omitempty"` // every node can get at the image
	Template string     `json:"template"`
	TakenAt  time.Time  `json:"taken_at"`
	Until    time.Time  `json:"until"` // the image is dropped then
	Bytes    int64      `json:"bytes"` // of the image, before it was sealed
}

// SuspendReport is how the suspending of a session went.
type SuspendReport struct {
	Suspended
	Took Millis     `json:"took_ms"` // until the session was given up
	Left []Leftover `json:"left"`    // its container, where it could not be seen dead
}

// Phases is what a session's boot took, phase by phase. A phase that there was
// none of is 0.
type Phases struct {
	Queue  Millis `json:"queue_ms"` // for one of the node's slots
	Claim  Millis `json:"claim_ms"`
	Pull   Millis `json:"pull_ms"` // of the image, where the node had none
	Init   Millis `json:"init_ms"` // the template's init steps, all of them
	Create Millis `json:"create_ms"`
	Start  Millis `json:"start_ms"`
	Ready  Millis `json:"ready_ms"` // from started until it answered
}

// Total is the sum of all phases, which follow each other.
func (p Phases) Total() Millis {
	return p.Queue + p.Claim + p.Pull + p.Init + p.Create + p.Start + p.Ready
}

func (o Owner) String() string {
	return fmt.Sprintf("%s@%s epoch %d %s", o.Key, o.Node, o.Epoch, o.State)
}

// Node is what a node publishes of itself under its lease.
type Node struct {
	ID          NodeID `json:"id"`
	Address     string `json:"address,omitempty"` // host:port of its gateway
	Version     string `json:"version,omitempty"`
	PeerAddress string `json:"peer_address,omitempty"` // host:port that other nodes connect to; "" takes nothing from others
	Draining    bool   `json:"draining"`               // takes no new session
	Sessions    int    `json:"sessions"`
	Max         int    `json:"max,omitempty"` // sessions that it takes at most, 0 is no bound
	Boots       int    `json:"boots"`         // containers being started or waiting for it
	Slots       int    `json:"slots"`         // containers that it starts at once
	// Networks are ready networks that wait for sessions, and NetworksKept is how
	// many are kept when all is quiet.
	Networks     int `json:"networks"`
	NetworksKept int `json:"networks_kept"`
	// Warm are containers of all templates that wait for a session, and WarmWanted
	// is how many are wanted to.
	Warm       int     `json:"warm"`
	WarmWanted int     `json:"warm_wanted"`
	CPULoad    float64 `json:"cpu_load"`     // busy share of all CPUs over the last interval, 0 to 1
	Pressure   float64 `json:"cpu_pressure"` // share of the last 10 s in which something waited for a CPU, 0 to 1 (PSI, "some avg10"); 0 where the kernel does not say
	Memory     Memory  `json:"memory"`
	Trouble    string  `json:"trouble,omitempty"` // why it should get no new session; "" for a healthy one
	// Degraded is why containers are slow on it, "" where they are not known to
	// be: new sessions go elsewhere, as far as OutOfRotation says.
	Degraded      string    `json:"degraded,omitempty"`
	DegradedSince time.Time `json:"degraded_since,omitzero"`
	Lease         int64     `json:"lease,omitempty"` // that its records hang on
	Since         time.Time `json:"since"`           // when the agent came up
	SeenAt        time.Time `json:"seen_at"`
}

// Memory is a host's memory in bytes.
type Memory struct {
	Total     int64 `json:"total"`
	Available int64 `json:"available"`
}
