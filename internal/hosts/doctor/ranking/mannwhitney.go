package ranking

import (
	"math"
	"math/rand/v2"
	"slices"
)

// exactUpTo is the total number of values up to which splits are counted exactly; for
// more, random splits are sampled. The usual normal approximation is unsuitable: for a
// fact that is 0 on nearly all nodes it is far too confident.
const exactUpTo = 40

// separation compares two non-empty samples. auc is the probability that a value of x is
// larger than one of y, ties counting half. chance is the probability that random groups
// of these sizes are separated at least as far, in either direction.
func separation(x, y []float64) (auc, chance float64) {
	ranks := midranks(slices.Concat(x, y))
	sum := 0 // of x's doubled ranks
	for _, r := range ranks[:len(x)] {
		sum += r
	}
	n, m := float64(len(x)), float64(len(y))
	auc = (float64(sum)/2 - n*(n+1)/2) / (n * m)
	if len(ranks) <= exactUpTo {
		return auc, exact(ranks, len(x), sum)
	}
	return auc, sampled(ranks, len(x), sum)
}

// midranks returns the doubled ranks of the values, starting at 1. Ties get the mean of
// their ranks; doubling makes it a whole number.
func midranks(v []float64) []int {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		switch {
		case v[i] < v[j]:
			return -1
		case v[i] > v[j]:
			return 1
		}
		return 0
	})
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

// exact counts, among all ways to choose n of the ranks, those whose sum is at least as
// far from the mean as the given one. Doubled ranks and their sums are whole numbers.
func exact(ranks []int, n, sum int) float64 {
	total := 0
	for _, r := range ranks {
		total += r
	}
	if n > len(ranks)-n { // the complement is equally far off, and smaller
		n, sum = len(ranks)-n, total-sum
	}
	// ways[k][s] is the number of ways in which k ranks have the sum s.
	ways := make([][]float64, n+1)
	for k := range ways {
		ways[k] = make([]float64, total+1)
	}
	ways[0][0] = 1
	until := 0 // the sum of the ranks so far
	for i, r := range ranks {
		until += r
		for k := min(n, i+1); k >= 1; k-- {
			for s := until; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	far := distance(ranks, n, total)
	all, those := 0.0, 0.0
	for s, w := range ways[n] {
		all += w
		if w > 0 && far(s) >= far(sum) {
			those += w
		}
	}
	return min(1, those/all)
}

// distance returns the distance of a sum of n of the ranks from the mean, scaled to a
// whole number; the mean is n·total/len(ranks).
func distance(ranks []int, n, total int) func(sum int) int {
	return func(sum int) int {
		d := len(ranks)*sum - n*total
		return max(d, -d)
	}
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
// from the mean as the given one. The given group counts as drawn, too, so that no
// probability is 0 or too small (Phipson and Smyth, Permutation p-values should never be
// zero, 2010). The random numbers are the same each time.
func sampled(ranks []int, n, sum int) float64 {
	total := 0
	for _, r := range ranks {
		total += r
	}
	if n > len(ranks)-n {
		n, sum = len(ranks)-n, total-sum
	}
	far := distance(ranks, n, total)
	limit := far(sum)
	samples := min(max(sampleWork/n, minSamples), maxSamples)
	random := rand.New(rand.NewPCG(1947, 2010))
	deck := slices.Clone(ranks)
	those := 1
	for range samples {
		s := 0
		for i := range n { // the first n of a shuffle (Fisher and Yates)
			j := i + random.IntN(len(deck)-i)
			deck[i], deck[j] = deck[j], deck[i]
			s += deck[i]
		}
		if far(s) >= limit {
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
