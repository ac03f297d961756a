package spinup

import (
	"errors"
	"slices"
	"time"

	"holdfast"
)

// Sketch is the answer of one host to a Question, in a form in which answers of many hosts
// can be merged without loss: counts add, and times are in Buckets.
type Sketch struct {
	Count   int           `json:"count"`  // records
	Oldest  time.Time     `json:"oldest"` // of them
	Newest  time.Time     `json:"newest"`
	Groups  []GroupSketch `json:"groups"`   // the largest first, at most 1,000
	LeftOut int           `json:"left_out"` // groups beyond these
}

// GroupSketch is a Group of one host.
type GroupSketch struct {
	Name    string        `json:"name"`
	Count   int           `json:"count"`
	Failed  int           `json:"failed"`
	Stopped int           `json:"stopped"`
	Cached  int           `json:"cached"`
	Phases  []PhaseSketch `json:"phases"`
}

// PhaseSketch is one phase of a group on one host: the judged values, of which Slow are slow
// by that host's rules.
type PhaseSketch struct {
	Phase  Phase   `json:"phase"`
	Judged int     `json:"judged"`
	Slow   int     `json:"slow"`
	Values Buckets `json:"values"`
}

// maxSketchGroups bounds the groups of a Sketch: with five phases each they are about 2 MB.
const maxSketchGroups = 1000

// Sketch answers a question from the stored records. Against is left to FleetReportOf.
func (s *Store) Sketch(q Question, rules Rules) (Sketch, error) {
	records, err := s.forReport(q)
	if err != nil {
		return Sketch{}, err
	}
	return NewSketch(records, q, rules), nil
}

// NewSketch answers a question from records, newest first, as NewReport does.
func NewSketch(records []Record, q Question, rules Rules) Sketch {
	x := Sketch{Count: len(records), Groups: []GroupSketch{}}
	x.Oldest, x.Newest = ends(records)
	groups := q.groups(records, rules)
	if len(groups) > maxSketchGroups {
		x.LeftOut = len(groups) - maxSketchGroups
		groups = groups[:maxSketchGroups]
	}
	for _, g := range groups {
		one := GroupSketch{Name: g.Name, Count: g.Count, Failed: g.Failed, Stopped: g.Stopped, Cached: g.Cached, Phases: []PhaseSketch{}}
		for _, p := range g.Phases {
			one.Phases = append(one.Phases, PhaseSketch{p.Phase, p.Judged, p.Slow, p.values.buckets()})
		}
		x.Groups = append(x.Groups, one)
	}
	return x
}

// ErrSketch means that a Sketch is invalid: NewSketch does not make one like it.
var ErrSketch = errors.New("the answer contradicts itself")

// Check returns ErrSketch if the counts of the sketch contradict each other.
func (x Sketch) Check() error {
	if x.Count < 0 || len(x.Groups) > maxSketchGroups {
		return ErrSketch
	}
	for _, g := range x.Groups {
		if min(g.Count, g.Failed, g.Stopped, g.Cached) < 0 || len(g.Phases) > len(Phases()) {
			return ErrSketch
		}
		for _, p := range g.Phases {
			if !slices.Contains(Phases(), p.Phase) || p.Slow < 0 || p.Slow > p.Judged || !p.Values.valid(p.Judged) {
				return ErrSketch
			}
		}
	}
	return nil
}

// NodeSketch is a node's answer, or the reason why it has none.
type NodeSketch struct {
	Node   holdfast.NodeID
	Sketch Sketch
	Err    error
}

// FleetReport is a Report of all nodes of a fleet. Each node judges by its own rules.
type FleetReport struct {
	Report
	Nodes    int       `json:"nodes"`     // that answered
	NoAnswer []Missing `json:"no_answer"` // by node
}

// Missing is a node without an answer.
type Missing struct {
	Node holdfast.NodeID `json:"node"`
	Why  string          `json:"why"`
}

// FleetReportOf merges the answers of nodes to a question. It returns holdfast.ErrNotFound
// if no group is called q.Against.
func FleetReportOf(answers []NodeSketch, q Question) (FleetReport, error) {
	out := FleetReport{NoAnswer: []Missing{}}
	sum := Sketch{}
	groups := map[string]*merged{}
	for _, a := range answers {
		err := a.Err
		if err == nil {
			err = a.Sketch.Check()
		}
		if err != nil {
			out.NoAnswer = append(out.NoAnswer, Missing{a.Node, cut(err.Error())})
			continue
		}
		out.Nodes++
		sum.Count += a.Sketch.Count
		sum.LeftOut += a.Sketch.LeftOut
		if a.Sketch.Count > 0 {
			if sum.Oldest.IsZero() || a.Sketch.Oldest.Before(sum.Oldest) {
				sum.Oldest = a.Sketch.Oldest
			}
			if a.Sketch.Newest.After(sum.Newest) {
				sum.Newest = a.Sketch.Newest
			}
		}
		for _, g := range a.Sketch.Groups {
			m := groups[g.Name]
			if m == nil {
				m = &merged{group: Group{Name: g.Name}, phases: map[Phase]*mergedPhase{}}
				groups[g.Name] = m
			}
			m.add(g)
		}
	}
	list := make([]Group, 0, len(groups))
	for _, m := range groups {
		list = append(list, m.whole())
	}
	r, err := q.report(q.sorted(list), sum.Count, sum.Oldest, sum.Newest)
	r.LeftOut += sum.LeftOut
	out.Report = r
	return out, err
}

// merged is a group with the values of several hosts.
type merged struct {
	group  Group
	phases map[Phase]*mergedPhase
}

type mergedPhase struct {
	judged, slow int
	values       tallies
}

func (m *merged) add(g GroupSketch) {
	m.group.Count += g.Count
	m.group.Failed += g.Failed
	m.group.Stopped += g.Stopped
	m.group.Cached += g.Cached
	for _, p := range g.Phases {
		s := m.phases[p.Phase]
		if s == nil {
			s = &mergedPhase{values: tallies{}}
			m.phases[p.Phase] = s
		}
		s.judged += p.Judged
		s.slow += p.Slow
		s.values.add(p.Values)
	}
}

func (m *merged) whole() Group {
	g := m.group
	g.Phases = []PhaseStats{}
	for _, phase := range Phases() {
		if s := m.phases[phase]; s != nil {
			g.Phases = append(g.Phases, newPhaseStats(phase, s.judged, s.slow, s.values.distribution()))
		}
	}
	return g
}
