package holdfast

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Millis is a duration that JSON shows as a number of milliseconds with at most
// three decimals; its fields are named with the suffix _ms.
type Millis time.Duration

// MarshalJSON implements json.Marshaler.
func (m Millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(math.Round(float64(m)/1e3) / 1e3)
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Millis) UnmarshalJSON(b []byte) error {
	var ms float64
	if err := json.Unmarshal(b, &ms); err != nil {
		return fmt.Errorf("milliseconds: %w", err)
	}
	*m = Millis(ms * 1e6)
	return nil
}

// String shows milliseconds with one decimal below ten, seconds from a second
// on: 3.2ms, 48ms, 1.28s.
func (m Millis) String() string {
	d := time.Duration(m)
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d)/1e6)
	case d < time.Second:
		return fmt.Sprintf("%.0fms", float64(d)/1e6)
	default:
		return fmt.Sprintf("%.2fs", d.Seconds())
	}
}

// Step is one timed part of a longer act.
type Step struct {
	Name  string `json:"name"`
	Took  Millis `json:"took_ms"`
	Count int    `json:"count"` // how many things the step acted on
}

// Leftover is a container that could not be seen dead.
type Leftover struct {
	ContainerID string     `json:"container_id"`
	Name        string     `json:"name"`
	Key         SessionKey `json:"key,omitempty"`
	Pids        []int      `json:"pids,omitempty"` // still in its cgroup
	Reason      string     `json:"reason"`
}

// KillReport is what became of a set of containers that were to die.
type KillReport struct {
	Took   Millis     `json:"took_ms"` // from the call until the last was seen dead
	Dead   []string   `json:"dead"`    // container ids, each seen dead
	Left   []Leftover `json:"left"`
	Steps  []Step     `json:"steps"`
	Quiet  bool       `json:"quiet"`            // the engine was stopped meanwhile
	Notice string     `json:"notice,omitempty"` // why it was not, where it should have been
}

// DrainReport is what became of everything that a node owned.
type DrainReport struct {
	Node     NodeID     `json:"node"`
	Started  time.Time  `json:"started"`
	Took     Millis     `json:"took_ms"`  // until all was given up or left; clients that wait are served beyond that
	Owned    int        `json:"owned"`    // sessions at the start
	Dead     int        `json:"dead"`     // containers seen dead
	Released int        `json:"released"` // sessions whose ownership was given up
	Steps    []Step     `json:"steps"`
	Left     []Leftover `json:"left"`
	Notice   string     `json:"notice,omitempty"`
	// Snapshots is what the templates' snapshot commands did. One that
	// failed does not keep its session from being given up.
	Snapshots SnapshotReport `json:"snapshots,omitzero"`
	// Memory is what became of what sessions had in memory, of templates that
	// say "handover: memory". What is lost boots fresh.
	Memory MemoryReport `json:"memory,omitzero"`
}

// MemoryReport is what became of the memory of sessions that left together.
type MemoryReport struct {
	Saved     int          `json:"saved"`        // sessions whose image is where they go on
	Bytes     int64        `json:"bytes"`        // of their images
	Took      Millis       `json:"took_ms"`      // until the last was handed over
	Estimated Millis       `json:"estimated_ms"` // until the last image was away, as it was planned
	Lost      []LostMemory `json:"lost"`
}

// MoveReport is what became of one session that was to go on on another node.
type MoveReport struct {
	KillReport
	// To is the node that was told to take it; "" where none was.
	To NodeID `json:"to,omitempty"`
	// Memory is what became of what it had in memory, where its template says
	// "handover: memory".
	Memory MemoryReport `json:"memory,omitzero"`
}

// LostMemory is a session whose memory was not saved.
type LostMemory struct {
	Key    SessionKey `json:"key"`
	Epoch  Epoch      `json:"epoch"`
	Bytes  int64      `json:"bytes"` // that its image would have had, as far as is known
	Reason string     `json:"reason"`
}

// SaveReport is what became of the sessions that were to be saved before they were
// given up.
type SaveReport struct {
	Memory    MemoryReport
	Kill      KillReport // what was saved has to be seen dead, too
	Snapshots SnapshotReport
	Released  int // given up already
}

// SnapshotReport is what became of the snapshot commands of sessions that ended
// together.
type SnapshotReport struct {
	Count   int               `json:"count"`      // sessions whose template has one
	Took    Millis            `json:"took_ms"`    // all of them, a few at a time
	Longest Millis            `json:"longest_ms"` // a single one
	Failed  []SnapshotFailure `json:"failed"`
}

// SnapshotFailure is a snapshot command that did not end well, or never ran.
type SnapshotFailure struct {
	Key    SessionKey `json:"key"`
	Epoch  Epoch      `json:"epoch"`
	Took   Millis     `json:"took_ms"`
	Reason string     `json:"reason"`
	Output string     `json:"output,omitempty"` // its end, at most a few kilobytes
}

// Clean reports whether every container was seen dead and every session given
// up.
func (r DrainReport) Clean() bool { return len(r.Left) == 0 && r.Released >= r.Owned }
