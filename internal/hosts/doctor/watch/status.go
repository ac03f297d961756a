package watch

import (
	"time"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
)

// Status is what the watch knows now.
type Status struct {
	At time.Time `json:"at"` // of the last round; the zero time before the first
	// Findings are open, the worst first.
	Findings []Open `json:"findings"`
	// Facts are the last round's about the host and its devices.
	Facts   []fact.Fact    `json:"facts"`
	Checked []doctor.Check `json:"checked"`
	Gaps    []fact.Gap     `json:"gaps"`
	Cost    Cost           `json:"cost"`
	Bursts  []Burst        `json:"bursts"` // the last few, the newest first
}

// Cost is what the watch has taken.
type Cost struct {
	Rounds  int64   `json:"rounds"`
	Bursts  int64   `json:"bursts"`
	Seconds float64 `json:"seconds"`     // since it began
	CPU     float64 `json:"cpu_seconds"` // of its own threads
	// Every is how many seconds lie between two rounds now: more than is
	// configured where a round costs much.
	Every float64 `json:"every_seconds"`
	Lost  int64   `json:"lost"` // findings and records that there was no room for
}

// Share is the CPU time as a share of one core.
func (c Cost) Share() float64 {
	if c.Seconds <= 0 {
		return 0
	}
	return c.CPU / c.Seconds
}

// Burst is one deeper look.
type Burst struct {
	At       time.Time `json:"at"`
	Why      string    `json:"why"`
	Findings int       `json:"findings"`
	CPU      float64   `json:"cpu_seconds"`
	Error    string    `json:"error,omitempty"`
}

// maxBursts is how many of them a Status has.
const maxBursts = 10

// History is what the watch knew.
type History struct {
	Events  []Event  `json:"events"`  // the newest first
	Samples []Sample `json:"samples"` // of facts, likewise
}

// Sample is what the facts of a while came to.
type Sample struct {
	At      time.Time         `json:"at"`      // when the while began
	Seconds float64           `json:"seconds"` // how long it was
	Facts   map[string]Figure `json:"facts"`   // by name; see fact.Summary
}

// Figure is one fact in a while.
type Figure struct {
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
	N    int     `json:"n"` // rounds that it was known in
}

func (f Figure) with(v float64) Figure {
	if f.N == 0 {
		return Figure{Mean: v, Max: v, N: 1}
	}
	f.N++
	f.Mean += (v - f.Mean) / float64(f.N)
	f.Max = max(f.Max, v)
	return f
}

// merge joins two whiles.
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

// add takes a round's facts in.
func (s *Sample) add(facts map[string]float64) {
	if s.Facts == nil {
		s.Facts = make(map[string]Figure)
	}
	for name, v := range facts {
		s.Facts[name] = s.Facts[name].with(v)
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
