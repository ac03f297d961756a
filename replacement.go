package holdfast

import "time"

// Replacement is the move of one session to a new container. The session ends on its
// node and boots again there or on another node. In a group another replica with a key of
// its own is started first, and Total is the time until the old one has ended.
type Replacement struct {
	Key      SessionKey `json:"key"`
	Template string     `json:"template,omitempty"`
	From     NodeID     `json:"from"`
	To       NodeID     `json:"to,omitempty"`    // node of the new container, "" if there is none
	Epoch    Epoch      `json:"epoch,omitempty"` // of the new container
	Started  time.Time  `json:"started"`
	Total    Millis     `json:"total_ms"` // from not ready until ready again, or until it failed
	Boot     Phases     `json:"boot"`     // as measured by the new node
	Error    string     `json:"error,omitempty"`
	// Replica is set if Key is the new replica of a group.
	Replica *ReplicaPhases `json:"replica,omitempty"`
}

// ReplicaPhases are the phases of a replacement in a group that follow the boot. A phase
// that did not begin is 0.
type ReplicaPhases struct {
	Old      SessionKey `json:"old"` // replica that is replaced
	CaughtUp Millis     `json:"caught_up_ms"`
	Rotation Millis     `json:"rotation_ms"` // from caught up until the old replica left the rotation
	Drained  Millis     `json:"drained_ms"`  // until the old replica had no connection, or was out of time
	Stopped  Millis     `json:"stopped_ms"`  // until the old replica was seen dead and its snapshot was done
}

// ReplaceReport is the result of replacing sessions, a few at a time.
type ReplaceReport struct {
	Started time.Time     `json:"started"`
	Took    Millis        `json:"took_ms"`
	Rows    []Replacement `json:"rows"`             // in the order in which they ended
	Gone    []SessionKey  `json:"gone"`             // had ended by themselves before their turn
	Unbegun []SessionKey  `json:"unbegun"`          // not replaced, because an earlier replacement failed
	Notice  string        `json:"notice,omitempty"` // further information
}

// Failed counts the sessions that did not come up again.
func (r ReplaceReport) Failed() int {
	n := 0
	for _, row := range r.Rows {
		if row.Error != "" {
			n++
		}
	}
	return n
}
