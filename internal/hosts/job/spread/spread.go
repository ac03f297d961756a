// Package spread places the runs of a job on the nodes of a fleet. Its functions are pure.
package spread

import (
	"math"
	"time"

	"holdfast"
)

// Candidate is a node that may run a part of a job.
type Candidate struct {
	Node holdfast.NodeID
	// Load is how busy the node is: 0 when it is idle, 1 when its CPUs are busy or all its
	// slots are taken.
	Load  float64
	Slots int // containers that the node starts at once
}

// Pair are the indices of two candidates that are drawn for a run. They are the same if
// there is one candidate only.
type Pair struct{ A, B int }

// Draw draws two of n candidates for each run. n is at least 1. intN returns a number from
// 0 up to its argument, exclusive.
func Draw(n, runs int, intN func(int) int) []Pair {
	pairs := make([]Pair, runs)
	if n == 1 {
		return pairs
	}
	for i := range pairs {
		a, b := intN(n), intN(n-1)
		if b >= a {
			b++
		}
		pairs[i] = Pair{a, b}
	}
	return pairs
}

// Drawn returns the indices of all candidates that are in a pair, each once.
func Drawn(pairs []Pair) (all []int) {
	seen := map[int]bool{}
	for _, p := range pairs {
		for _, i := range []int{p.A, p.B} {
			if !seen[i] {
				seen[i] = true
				all = append(all, i)
			}
		}
	}
	return all
}

// Work is the assumed duration of a job's steps on an idle node. The steps take about twice
// as long on a node of load 1, so a pull of this length weighs as much as a load of 1.
const Work = time.Minute

// Choose places each run on the cheaper node of its pair, in turn: "the power of two
// choices" (Mitzenmacher 2001). It returns the index of a candidate for each run, nil if
// no candidate answered.
//
// The cost of a node is its load and its estimated pull in units of Work. pulls has the
// estimates by the index of the candidate: 0 if the node has the images. A node without
// an estimate did not answer, and gets no run; a pair of two such nodes is replaced by all
// nodes that answered. Each placed run adds its containers to the load, as a share of the
// node's slots, because the next figures of the node come only later.
func Choose(candidates []Candidate, pairs []Pair, pulls map[int]time.Duration, containers int) []int {
	if len(pulls) == 0 {
		return nil
	}
	placed := map[int]int{}
	cost := func(i int) float64 {
		pull, ok := pulls[i]
		if !ok {
			return math.Inf(1)
		}
		c := candidates[i]
		return c.Load + float64(placed[i]*containers)/float64(max(c.Slots, 1)) + min(pull, Work).Seconds()/Work.Seconds()
	}
	chosen := make([]int, len(pairs))
	for n, p := range pairs {
		best := p.A
		if cost(p.B) < cost(best) {
			best = p.B
		}
		if math.IsInf(cost(best), 1) {
			for i := range candidates {
				if cost(i) < cost(best) {
					best = i
				}
			}
		}
		chosen[n] = best
		placed[best]++
	}
	return chosen
}
