package gc

import (
	"time"

	"holdfast"
)

// Trigger is why a cycle ran.
type Trigger string

// The triggers.
const (
	ByMark  Trigger = "mark"  // the disk is over one of its marks
	ByClock Trigger = "clock" // it was time to look for what leaks
	ByHand  Trigger = "hand"  // somebody asked
)

// Cycle is what one run of the collector did. It is kept while it runs, too.
type Cycle struct {
	Begun     time.Time       `json:"begun"`
	Took      holdfast.Millis `json:"took_ms"`
	Ended     bool            `json:"ended"` // false: it runs, or its process died
	Trigger   Trigger         `json:"trigger"`
	DryRun    bool            `json:"dry_run,omitempty"`
	Before    Disk            `json:"before"`
	After     Disk            `json:"after"`
	Planned   int             `json:"planned"`
	Deleted   []Outcome       `json:"deleted"`
	Skipped   []Outcome       `json:"skipped"`
	More      int             `json:"more,omitempty"`      // deleted or skipped, beyond those that are listed
	Suspended holdfast.Millis `json:"suspended_ms"`        // waiting for spin-ups
	Recovered int             `json:"recovered,omitempty"` // files of an earlier cycle's trash that were freed
	Notices   []string        `json:"notices,omitempty"`
	Error     string          `json:"error,omitempty"`
}

// Outcome is what became of one deletion.
type Outcome struct {
	Kind    Kind            `json:"kind"`
	Name    string          `json:"name"`
	ID      string          `json:"id,omitempty"`
	Reason  string          `json:"reason"` // why it went, or why it did not
	At      time.Time       `json:"at"`
	Bytes   int64           `json:"bytes"` // that it was to free, below 0 for unknown
	Names   int             `json:"names,omitempty"`
	Linked  int             `json:"linked,omitempty"` // files that were linked away before
	Locked  holdfast.Millis `json:"locked_ms"`        // what the engine took for it
	Guess   holdfast.Millis `json:"guess_ms"`         // what it was thought to take
	Waited  holdfast.Millis `json:"waited_ms"`
	Forced  bool            `json:"forced,omitempty"` // beside spin-ups: the disk was critically full
	Partial bool            `json:"partial,omitempty"`

	calls  int    // of the engine, to remove something
	failed string // what the engine said that could not take a name away
}

// maxOutcomes bounds what a cycle lists.
const maxOutcomes = 500

func (c *Cycle) add(list *[]Outcome, o Outcome) {
	if len(*list) >= maxOutcomes {
		c.More++
		return
	}
	*list = append(*list, o)
}
