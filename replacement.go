package holdfast

import "time"

// Replacement is the move of one session to a new container. The session ends on its
// node and boots again there or on another node.
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
