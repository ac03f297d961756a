package watch

import (
	"time"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
)

// Status is the current state of a Watch.
type Status struct {
	At time.Time `json:"at"` // of the last round; the zero time before the first
	// Findings holds the open findings, the most severe first.
	Findings []Open `json:"findings"`
	// Facts holds the last round's facts about the host and its devices.
	Facts   []fact.Fact    `json:"facts"`
	Checked []doctor.Check `json:"checked"`
	Gaps    []fact.Gap     `json:"gaps"`
	Cost    Cost           `json:"cost"`
	Bursts  []Burst        `json:"bursts"` // the last few, the newest first
}

// Cost is the cost of a Watch.
type Cost struct {
	Rounds  int64   `json:"rounds"`
	Bursts  int64   `json:"bursts"`
	Seconds float64 `json:"seconds"`     // since its start
	CPU     float64 `json:"cpu_seconds"` // of its own threads
	// Every is the current interval between two rounds in seconds. It is longer than
	// configured if a round costs much.
	Every float64 `json:"every_seconds"`
	Lost  int64   `json:"lost"` // findings and records beyond the bounds
}

// Share is the CPU time as a share of one core.
func (c Cost) Share() float64 {
	if c.Seconds <= 0 {
		return 0
	}
	return c.CPU / c.Seconds
}

// Burst is one burst.
type Burst struct {
	At       time.Time `json:"at"`
	Why      string    `json:"why"`
	Findings int       `json:"findings"`
	CPU      float64   `json:"cpu_seconds"`
	Error    string    `json:"error,omitempty"`
}

// maxBursts is the number of bursts in a Status.
const maxBursts = 10

// History is the stored past of a Watch.
type History struct {
	Events  []Event  `json:"events"`  // the newest first
	Samples []Sample `json:"samples"` // samples of facts, likewise
}

// Sample summarises the facts of a period.
type Sample struct {
	At      time.Time         `json:"at"`      // start of the period
	Seconds float64           `json:"seconds"` // length of the period
	Facts   map[string]Figure `json:"facts"`   // by name; see fact.Summary
}

// Figure is one fact over a period.
type Figure struct {
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
	N    int     `json:"n"` // number of rounds with a value
}

// merge combines the figures of two periods.
func (f Figure) merge(g Figure) Figure {
	switch {
	case f.N == 0:
		return g
	case g.N == 0:
		return f
	}
	n := f.N + g.N
	return Figure{Mean: f.Mean + (g.Mean-f.Mean)*float64(g.N)/float64(n), Max: max(f.Max, g.Max), N: n}
}

// add adds a round's facts.
func (s *Sample) add(facts map[string]float64) {
	if s.Facts == nil {
		s.Facts = make(map[string]Figure)
	}
	for name, v := range facts {
		s.Facts[name] = s.Facts[name].merge(Figure{Mean: v, Max: v, N: 1})
	}
}

// merge joins samples that follow each other, oldest first, into one.
func merge(all []Sample) Sample {
	one := Sample{At: all[0].At, Facts: make(map[string]Figure)}
	for _, s := range all {
		one.Seconds += s.Seconds
		for name, f := range s.Facts {
			one.Facts[name] = one.Facts[name].merge(f)
		}
	}
	return one
}
