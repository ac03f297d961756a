package ranking

import (
	"math"
	"slices"
)

// exactUpTo is how many values in all are counted exactly: beyond that the normal
// approximation is good to a few percent of the probability, and counting takes
// long.
const exactUpTo = 40

// separation compares two samples, neither of which is empty: the probability that
// one of x is larger than one of y, ties counting half, and how probable it is that
// groups of these sizes drawn at random are separated so far or farther, in either
// direction.
func separation(x, y []float64) (auc, chance float64) {
	ranks, ties := midranks(slices.Concat(x, y))
	sum := 0 // of x's ranks, twice
	for _, r := range ranks[:len(x)] {
		sum += r
	}
	n, m := float64(len(x)), float64(len(y))
	u := float64(sum)/2 - n*(n+1)/2
	auc = u / (n * m)
	if len(ranks) <= exactUpTo {
		return auc, exact(ranks, len(x), sum)
	}
	return auc, normal(u, n, m, ties)
}

// midranks are the ranks of the values, from 1, twice, so that those of ties are
// whole: each of them gets the mean of the places they take. ties is the sum of
// t³ - t over the groups of t equal values.
func midranks(v []float64) (ranks []int, ties float64) {
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
	ranks = make([]int, len(v))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && v[order[j]] == v[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			ranks[k] = i + 1 + j // twice the mean of i+1 to j
		}
		t := float64(j - i)
		ties += t*t*t - t
		i = j
	}
	return ranks, ties
}

// exact counts, of all ways to choose n of the ranks, those whose sum is as far from
// the middle as the given one, or farther. Twice the ranks are whole numbers, and so
// are their sums.
func exact(ranks []int, n, sum int) float64 {
	total := 0
	for _, r := range ranks {
		total += r
	}
	if n > len(ranks)-n { // the others are as far off, and fewer
		n, sum = len(ranks)-n, total-sum
	}
	// ways[k][s] is in how many ways k ranks have the sum s.
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
	// The middle is n·total/len(ranks); in whole numbers: far is |len·s - n·total|.
	far := func(s int) int {
		d := len(ranks)*s - n*total
		return max(d, -d)
	}
	all, those := 0.0, 0.0
	for s, w := range ways[n] {
		all += w
		if w > 0 && far(s) >= far(sum) {
			those += w
		}
	}
	return min(1, those/all)
}

// normal is the approximation of exact for large samples, with the correction for
// ties and for continuity (Lehmann, Nonparametrics, 1975, chapter 1).
func normal(u, n, m, ties float64) float64 {
	all := n + m
	variance := n * m / 12 * (all + 1 - ties/(all*(all-1)))
	if variance <= 0 {
		return 1
	}
	z := max(0, math.Abs(u-n*m/2)-0.5) / math.Sqrt(variance)
	return math.Erfc(z / math.Sqrt2)
}

// logChoose is the logarithm of the number of ways to choose k of n.
func logChoose(n, k int) float64 {
	f := func(x int) float64 {
		v, _ := math.Lgamma(float64(x) + 1)
		return v
	}
	return f(n) - f(k) - f(n-k)
}
