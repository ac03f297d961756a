package holdfast

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Millis is a duration that JSON shows as a number of milliseconds with at most three
// decimals. Its fields have names with the suffix _ms.
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
	if math.Abs(ms) >= math.MaxInt64/1e6 {
		return fmt.Errorf("milliseconds: %g is out of range", ms)
	}
	*m = Millis(ms * 1e6)
	return nil
}

// String shows milliseconds with one decimal below ten, and seconds from one second
// on: 3.2ms, 48ms, 1.28s.
// UnmarshalYAML reads a duration such as 30s.
func (m *Millis) UnmarshalYAML(read func(any) error) error { return read((*time.Duration)(m)) }

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

// Step is one timed part of a longer operation.
type Step struct {
	Name  string `json:"name"`
	Took  Millis `json:"took_ms"`
	Count int    `json:"count"` // number of things that the step acted on
}

// Leftover is a container that could not be seen dead.
type Leftover struct {
	ContainerID string     `json:"container_id"`
	Name        string     `json:"name"`
	Key         SessionKey `json:"key,omitempty"`
	Pids        []int      `json:"pids,omitempty"` // still in its cgroup
	Reason      string     `json:"reason"`
}

// KillReport is the result of killing a set of containers.
type KillReport struct {
	Took         Millis     `json:"took_ms"` // from the call until the last one was seen dead
	Dead         []string   `json:"dead"`    // container ids, each seen dead
	Left         []Leftover `json:"left"`
	Steps        []Step     `json:"steps"`
	EnginePaused bool       `json:"engine_paused"`    // the engine was paused meanwhile
	Notice       string     `json:"notice,omitempty"` // why the engine was not stopped, if it should have been
}

// DrainReport is the result of draining a node.
type DrainReport struct {
	Node     NodeID     `json:"node"`
	Started  time.Time  `json:"started"`
	Took     Millis     `json:"took_ms"`  // until all sessions were released or left; waiting clients are served after that
	Owned    int        `json:"owned"`    // sessions at the start
	Dead     int        `json:"dead"`     // containers seen dead
	Released int        `json:"released"` // sessions whose ownership was released
	Steps    []Step     `json:"steps"`
	Left     []Leftover `json:"left"`
	Notice   string     `json:"notice,omitempty"`
	// Snapshots is the result of the templates' snapshot commands. A session is
	// released even if its snapshot failed.
	Snapshots SnapshotReport `json:"snapshots,omitzero"`
	// Memory is the result for the memory of sessions whose template has "handover:
	// memory". A session whose memory is lost boots fresh.
	Memory MemoryReport `json:"memory,omitzero"`
}

// MemoryReport is the result for the memory of sessions that left together.
type MemoryReport struct {
	Saved     int          `json:"saved"`        // sessions whose image has reached their next node
	Bytes     int64        `json:"bytes"`        // of their images
	Took      Millis       `json:"took_ms"`      // until the last session was handed over
	Estimated Millis       `json:"estimated_ms"` // planned time until the last image was sent
	Lost      []LostMemory `json:"lost"`
}

// MoveReport is the result of moving one session to another node.
type MoveReport struct {
	KillReport
	// To is the next node of the session, or "" if there was none.
	To NodeID `json:"to,omitempty"`
	// Memory is the result for the session's memory, if its template has "handover:
	// memory".
	Memory MemoryReport `json:"memory,omitzero"`
}

// LostMemory is a session whose memory was not saved.
type LostMemory struct {
	Key    SessionKey `json:"key"`
	Epoch  Epoch      `json:"epoch"`
	Bytes  int64      `json:"bytes"` // expected size of its image, if known
	Reason string     `json:"reason"`
}

// SaveReport is the result for the sessions that were to be saved before their
// release.
type SaveReport struct {
	Memory    MemoryReport
	Kill      KillReport // saved containers must be seen dead, too
	Snapshots SnapshotReport
	Released  int // already released
}

// SnapshotReport is the result of the snapshot commands of sessions that ended
// together.
type SnapshotReport struct {
	Count   int               `json:"count"`      // sessions whose template has a snapshot command
	Took    Millis            `json:"took_ms"`    // all commands, a few at a time
	Longest Millis            `json:"longest_ms"` // the longest single command
	Failed  []SnapshotFailure `json:"failed"`
}

// SnapshotFailure is a snapshot command that failed or never ran.
type SnapshotFailure struct {
	Key    SessionKey `json:"key"`
	Epoch  Epoch      `json:"epoch"`
	Took   Millis     `json:"took_ms"`
	Reason string     `json:"reason"`
	Output string     `json:"output,omitempty"` // end of its output, at most a few kilobytes
}

// Clean reports whether every container was seen dead and every session released.
func (r DrainReport) Clean() bool { return len(r.Left) == 0 && r.Released >= r.Owned }
