package replace

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"holdfast"
)

// Spread is the median and the maximum of some durations.
type Spread struct {
	P50 holdfast.Millis `json:"p50_ms"`
	Max holdfast.Millis `json:"max_ms"`
}

// NodeTimes are the times of replacements on one node: the starts of sessions there, and
// the ends of replicas.
type NodeTimes struct {
	Node  holdfast.NodeID `json:"node"`
	Count int             `json:"count"` // sessions that started there
	Init  Spread          `json:"init"`
	Start Spread          `json:"start"`
	Ready Spread          `json:"ready"`
	// Phases has all phases that took time on the node, also the three above.
	Phases []PhaseTimes `json:"phases"`
	// Ratio is the time of the phase Slowest on this node, divided by the fleet's
	// median. It is the highest ratio of all phases.
	Ratio   float64 `json:"ratio"`
	Slowest string  `json:"slowest"`
}

// PhaseTimes are the times of one phase on one node.
type PhaseTimes struct {
	Name string `json:"name"`
	Spread
	Ratio float64 `json:"ratio"` // to the fleet's median
}

// Phase returns the times of a phase, zero if it took none on the node.
func (n NodeTimes) Phase(name string) PhaseTimes {
	for _, p := range n.Phases {
		if p.Name == name {
			return p
		}
	}
	return PhaseTimes{Name: name}
}

// SlowRatio is the Ratio at and above which a node counts as slow.
const SlowRatio = 2.0

// Slow reports whether the node counts as slow.
func (n NodeTimes) Slow() bool { return n.Ratio >= SlowRatio }

// noise is the shortest duration that counts; shorter ones count as noise. The
// difference between one and three milliseconds is not significant.
const noise = 50 * time.Millisecond

// Phase is a phase by which nodes are compared.
type Phase struct {
	Name string
	Of   func(holdfast.Replacement) holdfast.Millis
	at   func(holdfast.Replacement) holdfast.NodeID // on which it took place
}

// ComparedPhases returns the phases by which nodes are compared, in their order. The last
// two are those of the old replica's node.
func ComparedPhases() []Phase {
	boot := func(name string, of func(holdfast.Phases) holdfast.Millis) Phase {
		return Phase{name, func(r holdfast.Replacement) holdfast.Millis { return of(r.Boot) }, func(r holdfast.Replacement) holdfast.NodeID { return r.To }}
	}
	replica := func(name string, at func(holdfast.Replacement) holdfast.NodeID, of func(holdfast.ReplicaPhases) holdfast.Millis) Phase {
		return Phase{name, func(r holdfast.Replacement) holdfast.Millis {
			if r.Replica == nil {
				return 0
			}
			return of(*r.Replica)
		}, at}
	}
	to := func(r holdfast.Replacement) holdfast.NodeID { return r.To }
	from := func(r holdfast.Replacement) holdfast.NodeID { return r.From }
	return []Phase{
		boot("place", func(p holdfast.Phases) holdfast.Millis { return p.Queue + p.Claim }),
		boot("image", func(p holdfast.Phases) holdfast.Millis { return p.Pull }),
		boot("disk", func(p holdfast.Phases) holdfast.Millis { return p.Disk }),
		boot("init", func(p holdfast.Phases) holdfast.Millis { return p.Init }),
		boot("create", func(p holdfast.Phases) holdfast.Millis { return p.Create }),
		boot("start", func(p holdfast.Phases) holdfast.Millis { return p.Start }),
		boot("ready", func(p holdfast.Phases) holdfast.Millis { return p.Ready }),
		replica("caught-up", to, func(p holdfast.ReplicaPhases) holdfast.Millis { return p.CaughtUp }),
		replica("drained", from, func(p holdfast.ReplicaPhases) holdfast.Millis { return p.Drained }),
		replica("stopped", from, func(p holdfast.ReplicaPhases) holdfast.Millis { return p.Stopped }),
	}
}

// ByNode compares the nodes of replacements, the slowest first. The time of a
// session is divided by the fleet's median for its template. That is the median of the
// nodes' medians, so a node with many sessions does not determine it. With two nodes it
// is the lower median, so the slower node does not determine it. Rows with an error do
// not count.
func ByNode(rows []holdfast.Replacement) []NodeTimes {
	nodes := map[holdfast.NodeID]*NodeTimes{}
	at := func(id holdfast.NodeID) *NodeTimes {
		if nodes[id] == nil {
			nodes[id] = &NodeTimes{Node: id, Phases: []PhaseTimes{}}
		}
		return nodes[id]
	}
	var counted []holdfast.Replacement
	for _, r := range rows {
		if r.Error == "" && r.To != "" {
			counted = append(counted, r)
			at(r.To).Count++
		}
	}
	for _, p := range ComparedPhases() {
		took := byPhase(counted, p)
		fleet := fleetMedians(took, p)
		for id, own := range took {
			at(id).add(PhaseTimes{p.Name, spread(own, p), ratioOf(own, p, fleet)})
		}
	}
	out := make([]NodeTimes, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, *n)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		return cmp.Or(cmp.Compare(b.Ratio, a.Ratio), cmp.Compare(a.Node, b.Node)) < 0
	})
	return out
}

// byPhase returns the rows in which the phase took time, by the node on which it did. A
// template without the phase is not compared by it.
func byPhase(rows []holdfast.Replacement, p Phase) map[holdfast.NodeID][]holdfast.Replacement {
	out := map[holdfast.NodeID][]holdfast.Replacement{}
	for _, r := range rows {
		if id := p.at(r); id != "" && p.Of(r) > 0 {
			out[id] = append(out[id], r)
		}
	}
	return out
}

// add adds a phase. It is the slowest if no earlier one has its ratio.
func (n *NodeTimes) add(p PhaseTimes) {
	n.Phases = append(n.Phases, p)
	for name, to := range map[string]*Spread{"init": &n.Init, "start": &n.Start, "ready": &n.Ready} {
		if name == p.Name {
			*to = p.Spread
		}
	}
	if p.Ratio > n.Ratio {
		n.Ratio, n.Slowest = p.Ratio, p.Name
	}
}

func spread(rows []holdfast.Replacement, p Phase) Spread {
	var all []holdfast.Millis
	for _, r := range rows {
		all = append(all, p.Of(r))
	}
	return Spread{P50: median(all), Max: slices.Max(all)}
}

// fleetMedians returns the medians of the nodes' medians, by template.
func fleetMedians(nodes map[holdfast.NodeID][]holdfast.Replacement, p Phase) map[string]holdfast.Millis {
	ofNodes := map[string][]holdfast.Millis{}
	for _, own := range nodes {
		for template, times := range byTemplate(own, p) {
			ofNodes[template] = append(ofNodes[template], median(times))
		}
	}
	out := map[string]holdfast.Millis{}
	for template := range ofNodes {
		out[template] = median(ofNodes[template])
	}
	return out
}

func byTemplate(rows []holdfast.Replacement, p Phase) map[string][]holdfast.Millis {
	out := map[string][]holdfast.Millis{}
	for _, r := range rows {
		out[r.Template] = append(out[r.Template], max(p.Of(r), holdfast.Millis(noise)))
	}
	return out
}

// ratioOf returns the median of the times of the rows, each divided by the fleet's
// median for its template.
func ratioOf(rows []holdfast.Replacement, p Phase, fleet map[string]holdfast.Millis) float64 {
	var all []float64
	for template, times := range byTemplate(rows, p) {
		for _, t := range times {
			all = append(all, float64(t)/float64(fleet[template]))
		}
	}
	return median(all)
}

// median returns the median. Of two values in the middle it is the lower one. The list
// must not be empty.
func median[T cmp.Ordered](all []T) T {
	all = slices.Sorted(slices.Values(all))
	return all[(len(all)-1)/2]
}
