package holdfast

import (
	"fmt"
	"slices"
	"time"
)

// NodeID names a host with an agent. It is unique in a fleet.
type NodeID string

// Epoch is the store's revision of a claim. It only grows, over all keys and over restores
// of the store from a backup, and is the fencing token: a container with a smaller epoch is out of date. The container
// receives it as HOLDFAST_EPOCH.
type Epoch int64

// Revision is the store's revision of a record's last write. Every write to a record
// names the revision that the writer has read.
type Revision int64

// State is the state of a session. It only moves forward: claimed → starting →
// ready → leaving.
type State string

// The states, in their order.
const (
	Claimed  State = "claimed"  // the record is written, no container runs yet
	Starting State = "starting" // the container is being created and started
	Ready    State = "ready"    // the container answers; Address is set
	Leaving  State = "leaving"  // the container is being stopped or handed over
)

// IsSuspended is the state, in lists, of a session that no node serves and that
// continues with its memory at the next connect. Such a session has no record.
const IsSuspended State = "suspended"

// order returns the position of a state, -1 for an unknown one.
func (s State) order() int { return slices.Index([]State{Claimed, Starting, Ready, Leaving}, s) }

// CanBecome reports whether a record may change from s to next. A record may be
// written again in the same state.
func (s State) CanBecome(next State) bool {
	return s.order() >= 0 && next.order() >= s.order()
}

// Owner is the record of one session: the node that serves it, the epoch and the
// address. It is a value; the store returns copies.
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
	// Memory is, from Ready on, Restored if the session continues with the memory of
	// its previous epoch, or else the reason why it does not. It is "" if there was no
	// memory to restore. While the memory is saved for the next epoch, it is Saving.
	Memory string `json:"memory,omitempty"`
	// Parent is the session with whose memory this one began, and Snapshot the name of the
	// snapshot. Both are "" for a session that began by itself.
	Parent   SessionKey `json:"parent,omitempty"`
	Snapshot SessionKey `json:"snapshot,omitempty"`
	// WakeAt is the time that was set for the session to wake; the zero time: none.
	WakeAt time.Time `json:"wake_at,omitzero"`
	// SuspendNote is what Suspend stored for this claim. Only the result of the claim
	// contains it.
	SuspendNote string `json:"-"`
}

// Restored is the value of Owner.Memory of a session that continues with its memory.
const Restored = "restored"

// Saving is the value of Owner.Memory of a session whose memory is being saved.
const Saving = "saving"

// Suspended is a session that no node serves and whose memory is kept for the next
// connect.
type Suspended struct {
	Key      SessionKey `json:"key"`
	Epoch    Epoch      `json:"epoch"`            // of the container that the image was saved from
	Node     NodeID     `json:"node"`             // node that has the image
	Shared   bool       `json:"shared,omitempty"` // every node can read the image
	Template string     `json:"template"`
	TakenAt  time.Time  `json:"taken_at"`
	Until    time.Time  `json:"until"` // the image is deleted then
	Bytes    int64      `json:"bytes"` // size of the image before encryption
	// The node that has the image resumes the session at WakeAt, which was set, and at
	// WakeCron, which is the template's; the zero time: never.
	WakeAt   time.Time `json:"wake_at,omitzero"`
	WakeCron time.Time `json:"wake_cron,omitzero"`
	// Lost is why there is no image; "" if there is one. The next claim receives the
	// reason.
	Lost string `json:"lost,omitempty"`
	// After is the epoch of the last claim that ended before it had taken the image, as when
	// the boot was cancelled; 0: none.
	After Epoch `json:"after,omitempty"`
	// From is set for a session that is about to start with the memory of another one. Epoch
	// is then 0. The claim that receives it does not boot the session fresh.
	From *MemorySnapshot `json:"from,omitempty"`
}

// Last is the last epoch of the session before its next claim.
func (s Suspended) Last() Epoch { return max(s.Epoch, s.After) }

// SuspendReport is the result of suspending a session.
type SuspendReport struct {
	Suspended
	Took Millis     `json:"took_ms"` // until the session was released
	Left []Leftover `json:"left"`    // its container, if it could not be seen dead
}

// Phases is the duration of each phase of a session's boot. A phase that the boot did
// not need is 0.
type Phases struct {
	Queue  Millis `json:"queue_ms"` // waiting for one of the node's slots
	Claim  Millis `json:"claim_ms"`
	Pull   Millis `json:"pull_ms"`           // pulling the image, if the node did not have it
	Disk   Millis `json:"disk_ms,omitempty"` // the init steps that restore the disk
	Init   Millis `json:"init_ms"`           // all other init steps of the template
	Create Millis `json:"create_ms"`
	Start  Millis `json:"start_ms"`
	Ready  Millis `json:"ready_ms"` // from started until the container answered
}

// Total is the sum of all phases. They do not overlap.
func (p Phases) Total() Millis {
	return p.Queue + p.Claim + p.Pull + p.Disk + p.Init + p.Create + p.Start + p.Ready
}

func (o Owner) String() string {
	return fmt.Sprintf("%s@%s epoch %d %s", o.Key, o.Node, o.Epoch, o.State)
}

// Node is the record that a node publishes under its lease.
type Node struct {
	ID          NodeID `json:"id"`
	Address     string `json:"address,omitempty"` // host:port of its gateway
	Version     string `json:"version,omitempty"`
	PeerAddress string `json:"peer_address,omitempty"` // host:port that other nodes connect to; "" accepts no other nodes
	Draining    bool   `json:"draining"`               // accepts no new session
	Sessions    int    `json:"sessions"`
	Max         int    `json:"max,omitempty"` // highest number of sessions, 0 means no limit
	Boots       int    `json:"boots"`         // containers that are starting or waiting to start
	Slots       int    `json:"slots"`         // containers that the node starts at once
	// Networks is the number of ready networks that wait for sessions. NetworksKept is
	// the number that the pool keeps while the node is idle.
	Networks     int `json:"networks"`
	NetworksKept int `json:"networks_kept"`
	// EngineNetworks is why sessions get networks of the engine's, and not of Holdfast's;
	// "" if they do not.
	EngineNetworks string `json:"engine_networks,omitempty"`
	// Warm is the number of containers, of all templates, that wait for a session.
	// WarmWanted is the number that the pools aim for.
	Warm       int     `json:"warm"`
	WarmWanted int     `json:"warm_wanted"`
	CPULoad    float64 `json:"cpu_load"`     // busy share of all CPUs over the last interval, 0 to 1
	Pressure   float64 `json:"cpu_pressure"` // share of the last 10 s in which a task waited for a CPU, 0 to 1 (PSI, "some avg10"); 0 if the kernel does not report it
	Memory     Memory  `json:"memory"`
	Trouble    string  `json:"trouble,omitempty"` // why the node should get no new session; "" if it is healthy
	// Degraded is why containers are slow on the node, or "" if they are not known to
	// be slow. New sessions go to other nodes, within the limit of OutOfRotation.
	Degraded      string    `json:"degraded,omitempty"`
	DegradedSince time.Time `json:"degraded_since,omitzero"`
	Lease         int64     `json:"lease,omitempty"` // lease of the node's records
	Since         time.Time `json:"since"`           // when the agent started
	SeenAt        time.Time `json:"seen_at"`         // when the agent wrote the record, at most 5 s ago, and 25 s with an embedded store
}

// Memory is a host's memory in bytes.
type Memory struct {
	Total     int64 `json:"total"`
	Available int64 `json:"available"`
}
