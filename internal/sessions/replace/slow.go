package replace

import (
	"cmp"
	"slices"
	"time"

	"holdfast"
)

// Spread is the median and the maximum of some durations.
type Spread struct {
	P50 holdfast.Millis `json:"p50_ms"`
	Max holdfast.Millis `json:"max_ms"`
}

// NodeTimes are the times of the starts of sessions on one node.
type NodeTimes struct {
	Node  holdfast.NodeID `json:"node"`
	Count int             `json:"count"`
	Init  Spread          `json:"init"`
	Start Spread          `json:"start"`
	Ready Spread          `json:"ready"`
	// Ratio is the time of the phase Slowest on this node, divided by the fleet's
	// median. It is the highest ratio of the three phases.
	Ratio   float64 `json:"ratio"`
	Slowest string  `json:"slowest"`
}

// SlowRatio is the Ratio at and above which a node counts as slow.
const SlowRatio = 2.0

// Slow reports whether the node counts as slow.
func (n NodeTimes) Slow() bool { return n.Ratio >= SlowRatio }

// noise is the shortest duration that counts; shorter ones count as noise. The
// difference between one and three milliseconds is not significant.
const noise = 50 * time.Millisecond

// phase is a phase by which nodes are compared.
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

// ByNode compares the nodes on which sessions started, the slowest first. The time of a
// session is divided by the fleet's median for its template. That is the median of the
// nodes' medians, so a node with many sessions does not determine it. With two nodes it
// is the lower median, so the slower node does not determine it. Rows with an error do
// not count.
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

// fleetMedians returns the medians of the nodes' medians, by template.
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

// ratioOf returns the median of the times of the rows, each divided by the fleet's
// median for its template.
func ratioOf(rows []holdfast.Replacement, p phase, fleet map[string]holdfast.Millis) float64 {
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
