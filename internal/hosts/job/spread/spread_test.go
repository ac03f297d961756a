package spread_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"holdfast/internal/hosts/job/spread"
)

// world is what Choose decides by.
type world struct {
	candidates []spread.Candidate
	pairs      []spread.Pair
	pulls      map[int]time.Duration
	containers int
}

func someWorld(t *rapid.T) world {
	w := world{pulls: map[int]time.Duration{}, containers: rapid.IntRange(1, 32).Draw(t, "containers")}
	for range rapid.IntRange(1, 12).Draw(t, "nodes") {
		w.candidates = append(w.candidates, spread.Candidate{Load: rapid.Float64Range(0, 8).Draw(t, "load"), Slots: rapid.IntRange(0, 16).Draw(t, "slots")})
	}
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	w.pairs = spread.Draw(len(w.candidates), rapid.IntRange(1, 256).Draw(t, "runs"), r.IntN)
	for _, i := range spread.Drawn(w.pairs) {
		if rapid.IntRange(0, 3).Draw(t, "answers") > 0 {
			w.pulls[i] = time.Duration(rapid.IntRange(0, 100).Draw(t, "pull")) * time.Second
		}
	}
	return w
}

func (w world) choose() []int {
	return spread.Choose(w.candidates, w.pairs, w.pulls, w.containers)
}

// Two different candidates are drawn for each run, if there are two.
func TestDraw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, runs := rapid.IntRange(1, 9).Draw(t, "n"), rapid.IntRange(1, 99).Draw(t, "runs")
		pairs := spread.Draw(n, runs, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "draw") })
		if len(pairs) != runs {
			t.Fatalf("%d pairs for %d runs", len(pairs), runs)
		}
		for _, p := range pairs {
			if min(p.A, p.B) < 0 || max(p.A, p.B) >= n || n > 1 && p.A == p.B {
				t.Fatalf("pair %v of %d", p, n)
			}
		}
	})
}

// Each run is placed on a node that answered, and on one of its pair if one of them did.
func TestOnlyNodesThatAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := someWorld(t)
		chosen := w.choose()
		if len(w.pulls) == 0 {
			if chosen != nil {
				t.Fatalf("chose %v of none", chosen)
			}
			return
		}
		for n, i := range chosen {
			p := w.pairs[n]
			_, a := w.pulls[p.A]
			_, b := w.pulls[p.B]
			if _, ok := w.pulls[i]; !ok || (a || b) && i != p.A && i != p.B {
				t.Fatalf("run %d of pair %v is on %d; answers: %v", n, p, i, w.pulls)
			}
		}
	})
}

// Of two equally loaded nodes, the one that has the images gets the first run. A node that
// is busier by more than the pull is worth does not.
func TestImagesCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pull := time.Duration(rapid.IntRange(1, 3600).Draw(t, "pull")) * time.Second
		more := rapid.Float64Range(0, 3).Draw(t, "more load")
		has := rapid.IntRange(0, 1).Draw(t, "has the images")
		w := world{candidates: make([]spread.Candidate, 2), pairs: []spread.Pair{{A: 0, B: 1}}, containers: 1, pulls: map[int]time.Duration{has: 0, 1 - has: pull}}
		w.candidates[has].Load = more
		worth := min(pull, spread.Work).Seconds() / spread.Work.Seconds()
		if more < worth && w.choose()[0] != has || more > worth && w.choose()[0] == has {
			t.Fatalf("images of %v on node %d with a load of %v more: chose %d", pull, has, more, w.choose()[0])
		}
	})
}

// Equal nodes that each pair draws get equal numbers of runs, at most one more or less.
func TestRunsOfOneJobCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs, slots := rapid.IntRange(1, 256).Draw(t, "runs"), rapid.IntRange(1, 16).Draw(t, "slots")
		w := world{candidates: []spread.Candidate{{Slots: slots}, {Slots: slots}}, containers: 1, pulls: map[int]time.Duration{0: 0, 1: 0}}
		w.pairs = spread.Draw(2, runs, rand.IntN)
		counts := map[int]int{}
		for _, i := range w.choose() {
			counts[i]++
		}
		if d := counts[0] - counts[1]; d < -1 || d > 1 {
			t.Fatalf("%v", counts)
		}
	})
}

// A node that does not get the first run does not get it either when it is busier, or when
// its pull is longer. (That does not hold for later runs: they follow the earlier ones.)
func TestWorseIsNotChosen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := someWorld(t)
		i := rapid.SampledFrom(spread.Drawn(w.pairs)).Draw(t, "node")
		if _, ok := w.pulls[i]; !ok || w.choose()[0] == i {
			return
		}
		w.candidates[i].Load += rapid.Float64Range(0, 4).Draw(t, "more")
		w.pulls[i] += time.Duration(rapid.IntRange(0, 60).Draw(t, "longer")) * time.Second
		if w.choose()[0] == i {
			t.Fatalf("node %d is worse, and chosen now", i)
		}
	})
}
