package holdfast

import "time"

// Replacement is one session's move to a new container: ended where it was, and
// up again there or on another node.
type Replacement struct {
	Key      SessionKey `json:"key"`
	Template string     `json:"template,omitempty"`
	From     NodeID     `json:"from"`
	To       NodeID     `json:"to,omitempty"`    // where it came up, "" where it did not
	Epoch    Epoch      `json:"epoch,omitempty"` // the new one's
	Started  time.Time  `json:"started"`
	Total    Millis     `json:"total_ms"` // from not ready until ready again, or until it failed
	Boot     Phases     `json:"boot"`     // as the new node measured it
	Error    string     `json:"error,omitempty"`
}

// ReplaceReport is what became of sessions that were to be replaced, a few at a
// time.
type ReplaceReport struct {
	Started time.Time     `json:"started"`
	Took    Millis        `json:"took_ms"`
	Rows    []Replacement `json:"rows"`             // in the order in which they ended
	Gone    []SessionKey  `json:"gone"`             // had ended by themselves when their turn came
	Unbegun []SessionKey  `json:"unbegun"`          // left as they were, because something went wrong before
	Notice  string        `json:"notice,omitempty"` // what else there is to know
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
