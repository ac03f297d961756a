package replace

import (
	"cmp"
	"slices"
	"time"

	"holdfast"
)

// Spread is the middle and the end of some durations.
type Spread struct {
	P50 holdfast.Millis `json:"p50_ms"`
	Max holdfast.Millis `json:"max_ms"`
}

// NodeTimes is how long sessions took to come up on one node.
type NodeTimes struct {
	Node  holdfast.NodeID `json:"node"`
	Count int             `json:"count"`
	Init  Spread          `json:"init"`
	Start Spread          `json:"start"`
	Ready Spread          `json:"ready"`
	// Ratio is how many times the fleet's median the phase Slowest takes on
	// this node; it is the highest of the three.
	Ratio   float64 `json:"ratio"`
	Slowest string  `json:"slowest"`
}

// SlowRatio is the Ratio from which on a node counts as slow.
const SlowRatio = 2.0

// Slow reports whether the node stands out.
func (n NodeTimes) Slow() bool { return n.Ratio >= SlowRatio }

// noise is taken for the duration of what was shorter: between a millisecond
// and three there is no difference to speak of.
const noise = 50 * time.Millisecond

// phase is what nodes are compared by.
type phase struct {
	name string
	of   func(holdfast.Phases) holdfast.Millis
}

func comparedPhases() []phase {
	return []phase{
		{"init", func(p holdfast.Phases) holdfast.Millis { return p.Init }},
		{"start", func(p holdfast.Phases) holdfast.Millis { return p.Start }},
		{"ready", func(p holdfast.Phases) holdfast.Millis { return p.Ready }},
	}
}

// ByNode compares the nodes that sessions came up on, the slowest first. A
// session counts by how much longer it took than its template does: the fleet's
// median is, for each template, that of the nodes' medians, the lower one of
// two, so that neither a node with many sessions nor a slow one of two sets it.
// Rows with an error are left out.
func ByNode(rows []holdfast.Replacement) []NodeTimes {
	nodes := map[holdfast.NodeID][]holdfast.Replacement{}
	for _, r := range rows {
		if r.Error == "" && r.To != "" {
			nodes[r.To] = append(nodes[r.To], r)
		}
	}
	out := make([]NodeTimes, 0, len(nodes))
	for id, own := range nodes {
		n := NodeTimes{Node: id, Count: len(own)}
		for i, to := range []*Spread{&n.Init, &n.Start, &n.Ready} {
			p := comparedPhases()[i]
			*to = spread(own, p)
			if ratio := ratioOf(own, p, fleetMedians(nodes, p)); ratio > n.Ratio {
				n.Ratio, n.Slowest = ratio, p.name
			}
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b NodeTimes) int {
		return cmp.Or(cmp.Compare(b.Ratio, a.Ratio), cmp.Compare(a.Node, b.Node))
	})
	return out
}

func spread(rows []holdfast.Replacement, p phase) Spread {
	var all []holdfast.Millis
	for _, r := range rows {
		all = append(all, p.of(r.Boot))
	}
	return Spread{P50: median(all), Max: slices.Max(all)}
}

// fleetMedians are the medians of the nodes' medians, by template.
func fleetMedians(nodes map[holdfast.NodeID][]holdfast.Replacement, p phase) map[string]holdfast.Millis {
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

func byTemplate(rows []holdfast.Replacement, p phase) map[string][]holdfast.Millis {
	out := map[string][]holdfast.Millis{}
	for _, r := range rows {
		out[r.Template] = append(out[r.Template], max(p.of(r.Boot), holdfast.Millis(noise)))
	}
	return out
}

// ratioOf is the median of what the rows took, each in units of its template's
// median.
func ratioOf(rows []holdfast.Replacement, p phase, fleet map[string]holdfast.Millis) float64 {
	var all []float64
	for template, times := range byTemplate(rows, p) {
		for _, t := range times {
			all = append(all, float64(t)/float64(fleet[template]))
		}
	}
	return median(all)
}

// median is the lower one of two in the middle. There has to be one.
func median[T cmp.Ordered](all []T) T {
	all = slices.Sorted(slices.Values(all))
	return all[(len(all)-1)/2]
}
