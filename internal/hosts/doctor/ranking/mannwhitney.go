package ranking

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// exactUpTo is the total number of values up to which splits are counted exactly; for
// more, random splits are sampled. The usual normal approximation is unsuitable: for a
// fact that is 0 on nearly all nodes it is far too confident.
const exactUpTo = 40

// separation compares two non-empty samples. The result auc is the probability that a
// value of x is larger than one of y, ties counting half. The result chance is the
// probability that random groups of these sizes are separated at least as far, in either
// direction.
func separation(x, y []float64) (auc, chance float64) {
	ranks := midranks(slices.Concat(x, y))
	n, m := float64(len(x)), float64(len(y))
	auc = (float64(sum(ranks[:len(x)]))/2 - n*(n+1)/2) / (n * m)
	d := newDistribution(ranks, len(x))
	if len(ranks) <= exactUpTo {
		return auc, d.exact()
	}
	return auc, d.sampled()
}

// midranks returns the doubled ranks of the values, starting at 1. Ties get the mean of
// their ranks; doubling makes it a whole number.
func midranks(v []float64) []int {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(v[i], v[j]) })
	ranks := make([]int, len(v))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && v[order[j]] == v[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			ranks[k] = i + 1 + j // twice the mean of i+1 to j
		}
		i = j
	}
	return ranks
}

func sum(ranks []int) int {
	all := 0
	for _, r := range ranks {
		all += r
	}
	return all
}

// distribution is that of the sums of n of the ranks. Doubled ranks and their sums are
// whole numbers.
type distribution struct {
	ranks []int
	n     int
	total int // sum of all ranks
	limit int // distance of the given group's sum from the mean
}

// newDistribution returns the distribution for a group that has the first n of the ranks.
func newDistribution(ranks []int, n int) distribution {
	d := distribution{ranks: ranks, n: n, total: sum(ranks)}
	d.limit = d.distance(sum(ranks[:n]))
	d.n = min(n, len(ranks)-n) // the complement is equally far off
	return d
}

// distance returns the distance of a sum from the mean, scaled to a whole number; the
// mean is n·total/len(ranks).
func (d distribution) distance(sum int) int {
	far := len(d.ranks)*sum - d.n*d.total
	return max(far, -far)
}

// exact counts, among all ways to choose n of the ranks, those whose sum is at least as
// far from the mean as that of the given group.
func (d distribution) exact() float64 {
	// ways[k][s] is the number of ways in which k ranks have the sum s.
	ways := make([][]float64, d.n+1)
	for k := range ways {
		ways[k] = make([]float64, d.total+1)
	}
	ways[0][0] = 1
	until := 0 // the sum of the ranks so far
	for i, r := range d.ranks {
		until += r
		for k := min(d.n, i+1); k >= 1; k-- {
			for s := until; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	all, those := 0.0, 0.0
	for s, w := range ways[d.n] {
		all += w
		if w > 0 && d.distance(s) >= d.limit {
			those += w
		}
	}
	return min(1, those/all)
}

// Bounds of the number of random groups that sampled draws. They bound the work for one
// fact in fleets of thousands. The smallest possible result (one of the number drawn)
// stays well below five percent divided by a hundred facts.
const (
	sampleWork = 4_000_000 // ranks added up
	minSamples = 5_000
	maxSamples = 20_000
)

// sampled draws groups of n of the ranks and counts those whose sum is at least as far
// from the mean as that of the given one. The given group counts as drawn, too, so that no
// probability is 0 or too small (Phipson and Smyth, Permutation p-values should never be
// zero, 2010). The random numbers are the same each time.
func (d distribution) sampled() float64 {
	samples := min(max(sampleWork/d.n, minSamples), maxSamples)
	random := rand.New(rand.NewPCG(1947, 2010))
	deck := slices.Clone(d.ranks)
	those := 1
	for range samples {
		s := 0
		for i := range d.n { // the first n of a shuffle (Fisher and Yates)
			j := i + random.IntN(len(deck)-i)
			deck[i], deck[j] = deck[j], deck[i]
			s += deck[i]
		}
		if d.distance(s) >= d.limit {
			those++
		}
	}
	return float64(those) / float64(samples+1)
}

// logChoose returns the logarithm of the number of ways to choose k of n.
func logChoose(n, k int) float64 {
	f := func(x int) float64 {
		v, _ := math.Lgamma(float64(x) + 1)
		return v
	}
	return f(n) - f(k) - f(n-k)
}
