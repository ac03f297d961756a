package gc

import (
	"time"

	"holdfast"
)

// Trigger is the reason for a cycle.
type Trigger string

// The triggers.
const (
	ByThreshold Trigger = "threshold" // the disk is over one of its marks
	BySchedule  Trigger = "schedule"  // the periodic check for leaks
	ByRequest   Trigger = "request"   // a command or an API request
)

// Cycle is the record of one run of the collector. It is also written while the
// cycle runs.
type Cycle struct {
	Begun     time.Time       `json:"begun"`
	Took      holdfast.Millis `json:"took_ms"`
	Ended     bool            `json:"ended"` // false: still running, or its process died
	Trigger   Trigger         `json:"trigger"`
	Before    Disk            `json:"before"`
	After     Disk            `json:"after"`
	Planned   int             `json:"planned"`
	Deleted   []Outcome       `json:"deleted"`
	Skipped   []Outcome       `json:"skipped"`
	More      int             `json:"more,omitempty"`      // deleted or skipped objects beyond the listed ones
	Suspended holdfast.Millis `json:"suspended_ms"`        // time spent waiting for spin-ups
	Recovered int             `json:"recovered,omitempty"` // files freed from an earlier cycle's trash
	Notices   []string        `json:"notices,omitempty"`
	Error     string          `json:"error,omitempty"`
}

// Outcome is the result of one planned deletion.
type Outcome struct {
	Kind    Kind            `json:"kind"`
	Name    string          `json:"name"`
	ID      string          `json:"id,omitempty"`
	Reason  string          `json:"reason"` // why it was deleted, or why not
	At      time.Time       `json:"at"`
	Bytes   int64           `json:"bytes"` // expected to be freed; negative: unknown
	Names   int             `json:"names,omitempty"`
	Linked  int             `json:"linked,omitempty"` // files linked into the trash before the removal
	Locked  holdfast.Millis `json:"locked_ms"`        // duration of the engine's calls
	Guess   holdfast.Millis `json:"guess_ms"`         // expected duration of the engine's calls
	Waited  holdfast.Millis `json:"waited_ms"`
	Forced  bool            `json:"forced,omitempty"` // during spin-ups, because the disk was critically full
	Partial bool            `json:"partial,omitempty"`

	calls  int    // removal calls to the engine
	failed string // the engine's error for a name that it could not remove
}

// maxOutcomes is the number of outcomes that a cycle lists.
const maxOutcomes = 500

func (c *Cycle) add(list *[]Outcome, o Outcome) {
	if len(*list) >= maxOutcomes {
		c.More++
		return
	}
	*list = append(*list, o)
}
