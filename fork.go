package holdfast

import "time"

// MemorySnapshot is a copy of a session's memory and files, from which other sessions
// start. The session that it is of goes on.
type MemorySnapshot struct {
	Name     SessionKey `json:"name"`  // of one snapshot in the fleet; for a fork a random one
	Key      SessionKey `json:"key"`   // the session that it is of
	Epoch    Epoch      `json:"epoch"` // in which it was taken
	Node     NodeID     `json:"node"`  // that has it
	Shared   bool       `json:"shared,omitempty"`
	Template string     `json:"template"`
	TakenAt  time.Time  `json:"taken_at"`
	Until    time.Time  `json:"until"` // it is deleted then
	Bytes    int64      `json:"bytes"` // before encryption
	// Pause is how long the session was stopped for it, at most: the duration of the
	// runtime's checkpoint, with the start of its program.
	Pause Millis `json:"pause_ms"`
}

// MaxForks is how many sessions one fork starts at most.
const MaxForks = 100

// ForkReport is the result of a fork.
type ForkReport struct {
	MemorySnapshot
	Children []Forked `json:"children"` // in the order of the request
	Took     Millis   `json:"took_ms"`  // until all children were ready or had failed
}

// Forked is a session that was to start from another one's memory.
type Forked struct {
	Key   SessionKey `json:"key"`
	Node  NodeID     `json:"node,omitempty"`
	Epoch Epoch      `json:"epoch,omitempty"`
	Took  Millis     `json:"took_ms"` // from the request until it was ready, or had failed
	// Error is why it does not run; "" if it does.
	Error string `json:"error,omitempty"`
}

// Failed returns how many children do not run.
func (r ForkReport) Failed() (n int) {
	for _, c := range r.Children {
		if c.Error != "" {
			n++
		}
	}
	return n
}
