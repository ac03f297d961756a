// Package ranking finds what the slow hosts of a fleet have in common. It splits the
// nodes by their own spin-up times, and orders facts by how well they separate the two
// groups. It is pure.
//
// The separation of a fact is the probability that a slow node has more of it than a fast
// one. One node is drawn at random from each group, and ties count half. This is the area
// under the ROC curve, which is the Mann-Whitney statistic U over the number of pairs
// (Mann and Whitney 1947; Hanley and McNeil 1982). It depends only on the order of the
// values, so it is the same for bytes and for their logarithm.
//
// Among fifty facts, one separates by chance. Each fact therefore has the probability of
// such a separation among nodes that were split at random. It is counted exactly for
// small fleets and by random sampling for large ones, and corrected for the number of
// facts by Holm's method (Holm 1979). A fleet is too small for a verdict if not even a
// perfect separation would pass.
//
// Facts are correlated, and a separating fact is not necessarily the cause.
package ranking

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"time"

	"holdfast"
)

// Record is what a node publishes about its host.
type Record struct {
	Node   holdfast.NodeID `json:"node"`
	At     time.Time       `json:"at"`
	Kernel string          `json:"kernel,omitempty"`
	Role   string          `json:"role,omitempty"`
	// Facts holds its facts by name; see fact.Summary.
	Facts    map[string]float64 `json:"facts"`
	Degraded string             `json:"degraded,omitempty"`
	Spinups  Spinups            `json:"spinups"`
}

// Spinups summarises the recent spin-ups of a node. Seconds are those of create and
// start, which do not depend on the size of an image.
type Spinups struct {
	Count int     `json:"count"`
	Slow  int     `json:"slow"` // with a slow phase, by the node's rules
	P50   float64 `json:"p50_s"`
	P99   float64 `json:"p99_s"`
}

// By is the criterion by which nodes are split.
type By string

// The criteria.
const (
	ByP50  By = "p50"
	ByP99  By = "p99"
	BySlow By = "slow" // the share of slow spin-ups
)

// ParseBy parses a criterion; "" is ByP50.
func ParseBy(s string) (By, error) {
	switch by := By(s); by {
	case "":
		return ByP50, nil
	case ByP50, ByP99, BySlow:
		return by, nil
	}
	return "", fmt.Errorf("nodes cannot be split by %q: use %s, %s or %s", s, ByP50, ByP99, BySlow)
}

func (b By) of(s Spinups) float64 {
	switch b {
	case ByP99:
		return s.P99
	case BySlow:
		return float64(s.Slow) / float64(s.Count)
	}
	return s.P50
}

// MinSpinups is the number of spin-ups that a node needs to be ranked: the median of
// fewer is not significant.
const MinSpinups = 5

// leastRatio is the minimum ratio of slow to fast times. Below it there is nothing to
// explain. It is a judgement.
const leastRatio = 1.5

// alpha is the significance level of a separation.
const alpha = 0.05

// Ranking is the result.
type Ranking struct {
	By    By     `json:"by"`
	Nodes []Node `json:"nodes"` // ranked nodes, the slowest first
	// LeftOut holds the nodes that are not ranked, with the reason.
	LeftOut []Excluded `json:"left_out"`
	Slow    Group      `json:"slow"`
	Fast    Group      `json:"fast"`
	// Facts holds the facts that differ among the nodes, the best separation first. Same
	// holds those with the same value everywhere.
	Facts []Fact   `json:"facts"`
	Same  []string `json:"same"`
	// Verdict is the result in one sentence. Enough means that there are enough nodes for
	// a verdict.
	Verdict string `json:"verdict"`
	Enough  bool   `json:"enough"`
}

// Node is a ranked node.
type Node struct {
	Node  holdfast.NodeID `json:"node"`
	Value float64         `json:"value"`
	Slow  bool            `json:"slow"`
}

// Excluded is a node that is not ranked.
type Excluded struct {
	Node holdfast.NodeID `json:"node"`
	Why  string          `json:"why"`
}

// Group is one of the two groups.
type Group struct {
	Nodes  int     `json:"nodes"`
	Median float64 `json:"median"` // of the criterion: seconds, or a share
}

// Fact is a fact and its separation.
type Fact struct {
	Name string  `json:"name"`
	Slow float64 `json:"slow_median"`
	Fast float64 `json:"fast_median"`
	// AUC is the probability that a slow node has more of it than a fast one, 0 to 1. At
	// 0.5 there is no separation, at 0 or 1 it is perfect.
	AUC float64 `json:"auc"`
	// Chance is the probability of this separation or a better one by chance. Corrected
	// is the same after the correction for the number of facts (Holm).
	Chance    float64 `json:"chance"`
	Corrected float64 `json:"corrected"`
	NSlow     int     `json:"n_slow"` // slow nodes with the fact
	NFast     int     `json:"n_fast"`
	Separates bool    `json:"separates"` // Corrected is under 5 %
}

// Separation is the distance of AUC from no separation: 0.5 to 1.
func (f Fact) Separation() float64 { return max(f.AUC, 1-f.AUC) }

// Rank determines which facts separate the slow nodes from the fast ones.
func Rank(records []Record, by By) Ranking {
	r := Ranking{By: by, Nodes: []Node{}, LeftOut: []Excluded{}, Facts: []Fact{}, Same: []string{}}
	all := r.count(records)
	if len(all) < 2 {
		r.Verdict = fmt.Sprintf("%d of %d nodes have %d spin-ups or more: there is nothing to compare", len(all), len(records), MinSpinups)
		return r
	}
	at := split(all, by)
	slow, fast := all[:at], all[at:]
	r.Slow, r.Fast = group(slow, by), group(fast, by)
	for i, x := range all {
		r.Nodes = append(r.Nodes, Node{Node: x.Node, Value: by.of(x.Spinups), Slow: i < at})
	}
	if !differs(r.Slow.Median, r.Fast.Median, by) {
		for i := range r.Nodes {
			r.Nodes[i].Slow = false
		}
		r.Verdict = fmt.Sprintf("the nodes do not differ: the slower %d are under %.1f times as slow as the others", r.Slow.Nodes, leastRatio)
		return r
	}
	r.compare(slow, fast)
	r.judge()
	return r
}

// count returns the records that are ranked, the slowest first.
func (r *Ranking) count(records []Record) []Record {
	var all []Record
	for _, x := range records {
		v := r.By.of(x.Spinups)
		switch {
		case x.Spinups.Count < MinSpinups:
			r.LeftOut = append(r.LeftOut, Excluded{x.Node, fmt.Sprintf("%d spin-ups, %d are required", x.Spinups.Count, MinSpinups)})
		case math.IsNaN(v) || math.IsInf(v, 0) || v < 0:
			r.LeftOut = append(r.LeftOut, Excluded{x.Node, "its spin-up times are not numbers"})
		default:
			all = append(all, x)
		}
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		return cmp.Or(cmp.Compare(r.By.of(b.Spinups), r.By.of(a.Spinups)), cmp.Compare(a.Node, b.Node)) < 0
	})
	sort.Slice(r.LeftOut, func(i, j int) bool { return r.LeftOut[i].Node < r.LeftOut[j].Node })
	return all
}

// floor is added to times before their logarithm is taken, in seconds: one millisecond is
// not significant.
const floor = 0.001

// split returns the number of slow nodes of the best split of the sorted nodes. It is the
// cut with the least variance within the two groups (Fisher 1958; Otsu's and Jenks'
// methods are special cases), on a logarithmic scale for times. A few very slow nodes
// among many thus become a group of their own, which a cut at the median would hide.
// Nodes with equal values stay together.
func split(sorted []Record, by By) int {
	v := make([]float64, len(sorted))
	for i, x := range sorted {
		if v[i] = by.of(x.Spinups); by != BySlow {
			v[i] = math.Log(v[i] + floor)
		}
	}
	total := 0.0
	for _, x := range v {
		total += x
	}
	best, at, left := math.Inf(-1), 1, 0.0
	for i := 1; i < len(v); i++ {
		left += v[i-1]
		if v[i] == v[i-1] {
			continue
		}
		n, m := float64(i), float64(len(v)-i)
		// The variance between the groups, without the terms that are equal for all cuts.
		if between := left*left/n + (total-left)*(total-left)/m; between > best {
			best, at = between, i
		}
	}
	return at
}

// differs reports whether the groups differ enough to be explained.
func differs(slow, fast float64, by By) bool {
	if by == BySlow { // the ratio of shares near 0 is not significant
		return slow-fast >= 0.05 && slow >= leastRatio*fast
	}
	return slow+floor >= leastRatio*(fast+floor)
}

func group(records []Record, by By) Group {
	var v []float64
	for _, x := range records {
		v = append(v, by.of(x.Spinups))
	}
	return Group{Nodes: len(records), Median: median(v)}
}

// median returns 0 for no values.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if m := len(v) / 2; len(v)%2 == 0 {
		return (v[m-1] + v[m]) / 2
	} else {
		return v[m]
	}
}

// maxKernels bounds the number of kernels that become facts.
const maxKernels = 8

// compare computes the facts.
func (r *Ranking) compare(slow, fast []Record) {
	values := func(records []Record) map[string][]float64 {
		m := make(map[string][]float64)
		for _, x := range records {
			for name, v := range x.Facts {
				if !math.IsNaN(v) && !math.IsInf(v, 0) {
					m[name] = append(m[name], v)
				}
			}
		}
		return m
	}
	a, b := values(slow), values(fast)
	addKernels(slow, fast, a, b)
	names := slices.Sorted(maps.Keys(a))
	for _, name := range names {
		x, y := a[name], b[name]
		if len(y) == 0 {
			continue // there is no value to compare with
		}
		if same(x, y) {
			r.Same = append(r.Same, name)
			continue
		}
		auc, chance := separation(x, y)
		r.Facts = append(r.Facts, Fact{Name: name, Slow: median(x), Fast: median(y), AUC: auc, Chance: chance, NSlow: len(x), NFast: len(y)})
	}
	holm(r.Facts)
	sort.SliceStable(r.Facts, func(i, j int) bool {
		a, b := &r.Facts[i], &r.Facts[j]
		return cmp.Or(cmp.Compare(a.Chance, b.Chance), cmp.Compare(b.Separation(), a.Separation())) < 0
	})
}

// addKernels adds a fact for each kernel: 1 if a node runs it, 0 otherwise.
func addKernels(slow, fast []Record, a, b map[string][]float64) {
	count := make(map[string]int)
	for _, x := range slices.Concat(slow, fast) {
		if x.Kernel != "" {
			count[x.Kernel]++
		}
	}
	kernels := slices.SortedFunc(maps.Keys(count), func(x, y string) int {
		return cmp.Or(cmp.Compare(count[y], count[x]), cmp.Compare(x, y))
	})
	switch len(kernels) {
	case 0, 1:
		return
	case 2: // the other kernel is the complement
		kernels = kernels[:1]
	}
	for _, k := range kernels[:min(len(kernels), maxKernels)] {
		add := func(records []Record, to map[string][]float64) {
			for _, x := range records {
				switch x.Kernel {
				case "": // unknown
				case k:
					to["kernel "+k] = append(to["kernel "+k], 1)
				default:
					to["kernel "+k] = append(to["kernel "+k], 0)
				}
			}
		}
		add(slow, a)
		add(fast, b)
	}
}

func same(x, y []float64) bool {
	return !slices.ContainsFunc(slices.Concat(x, y), func(v float64) bool { return v != x[0] })
}

// holm corrects for the number of facts: the smallest probability is multiplied by their
// number, the next by one less, and so on. None becomes smaller than the one before it.
func holm(facts []Fact) {
	order := make([]int, len(facts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(facts[i].Chance, facts[j].Chance) })
	last := 0.0
	for rank, i := range order {
		last = max(last, min(1, facts[i].Chance*float64(len(facts)-rank)))
		facts[i].Corrected, facts[i].Separates = last, last < alpha
	}
}

// judge sets the verdict.
func (r *Ranking) judge() {
	n := 0
	for _, f := range r.Facts {
		if f.Separates {
			n++
		}
	}
	// The smallest possible Chance, of a perfect separation without ties.
	least := 2 / math.Exp(logChoose(r.Slow.Nodes+r.Fast.Nodes, r.Slow.Nodes))
	r.Enough = len(r.Facts) > 0 && least*float64(len(r.Facts)) < alpha
	switch {
	case len(r.Facts) == 0:
		r.Verdict = "the nodes have no fact that differs"
	case !r.Enough:
		r.Verdict = fmt.Sprintf("too few nodes to say: with %d slow and %d fast ones, the best of %d facts separates them perfectly by chance with a probability of up to %.0f %%",
			r.Slow.Nodes, r.Fast.Nodes, len(r.Facts), 100*min(1, least*float64(len(r.Facts))))
	case n == 0:
		r.Verdict = fmt.Sprintf("none of %d facts separates them better than chance", len(r.Facts))
	default:
		r.Verdict = fmt.Sprintf("%d of %d facts separate them better than chance (Holm, 5 %%); a separating fact is not necessarily the cause", n, len(r.Facts))
	}
}
