package holdfast

import (
	"strconv"
	"strings"
	"time"
)

// Bounds of a group of replicas.
const (
	MaxReplicas     = 16                       // in a template; with the rows of a replacement, the group's record stays below store.MaxNoteValue
	MaxGroupNameLen = MaxKeyLen - len("-") - 2 // so that "NAME-99" is a session key
)

// Group is the replicas of one template. Each is a session with a key of its own. Group is
// also the form of the group's record in the store.
type Group struct {
	Name     string    `json:"name"` // also of its template, and the key of its address in the gateway
	Replicas []Replica `json:"replicas"`
	// Replacing is the replacement in progress, or the last one. It is nil before the
	// first one.
	Replacing *GroupReplacement `json:"replacing,omitempty"`
}

// Replica is one member of a group.
type Replica struct {
	Key   SessionKey   `json:"key"`
	State ReplicaState `json:"state"`
	Epoch Epoch        `json:"epoch,omitempty"` // that has caught up; 0: none has
}

// ReplicaState is the state of a replica in its group.
type ReplicaState string

// The states of a replica.
const (
	ReplicaJoining ReplicaState = "joining" // is started and catches up; gets no requests of the group
	ReplicaServing ReplicaState = "serving" // gets requests of the group
	ReplicaLeaving ReplicaState = "leaving" // gets no new requests; ends after its last connection
)

// ReplacePhase is what the replacement of a replica waits for.
type ReplacePhase string

// The phases, in their order.
const (
	ReplaceStarting   ReplacePhase = "starting"    // the new replica, with its init steps
	ReplaceCatchingUp ReplacePhase = "catching-up" // the template's caught_up
	ReplaceJoining    ReplacePhase = "joining"     // the gateways of all nodes may use the new replica
	ReplaceDraining   ReplacePhase = "draining"    // the connections of the old replica
	ReplaceStopping   ReplacePhase = "stopping"    // the old replica's end and its snapshot
)

// GroupReplacement is a replacement of replicas, one by one. Report grows until Ended is
// set.
type GroupReplacement struct {
	Report  ReplaceReport `json:"report"`
	Timeout Millis        `json:"timeout_ms"`     // for the start of each new replica
	Todo    []SessionKey  `json:"todo"`           // old replicas whose turn has not come
	Stop    bool          `json:"stop,omitempty"` // the present replica is the last one
	Ended   time.Time     `json:"ended,omitzero"`

	// Of the replica whose turn it is; Phase is "" between two replicas:

	Now      Replacement  `json:"now,omitzero"`
	OldEpoch Epoch        `json:"old_epoch,omitempty"` // of the container that is to end; 0: none runs
	Phase    ReplacePhase `json:"phase,omitempty"`
	Since    time.Time    `json:"since,omitzero"`     // begin of Phase
	Progress string       `json:"progress,omitempty"` // last line of caught_up's output
}

// Active reports whether the replacement has not ended.
func (r *GroupReplacement) Active() bool { return r != nil && r.Ended.IsZero() }

// ReplicaKey returns the key of the group's replica with number i, from 0 on.
func ReplicaKey(group string, i int) SessionKey { return SessionKey(group + "-" + strconv.Itoa(i)) }

// IsReplicaKey reports whether a key is one of those that only replicas of the group may
// have.
func IsReplicaKey(group string, key SessionKey) bool {
	n, ok := strings.CutPrefix(string(key), group+"-")
	if !ok {
		return false
	}
	i, err := strconv.Atoi(n)
	return err == nil && i >= 0 && strconv.Itoa(i) == n
}

// Replica returns the replica with a key, or nil.
func (g *Group) Replica(key SessionKey) *Replica {
	for i := range g.Replicas {
		if g.Replicas[i].Key == key {
			return &g.Replicas[i]
		}
	}
	return nil
}
