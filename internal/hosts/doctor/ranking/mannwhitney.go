package ranking

import (
	"math"
	"math/rand/v2"
	"slices"
)

// exactUpTo is how many values in all are counted exactly; for more it is tried by
// lot. The usual normal approximation will not do: a fact that is 0 on nearly all
// nodes makes it far too sure.
const exactUpTo = 40

// separation compares two samples, neither of which is empty: the probability that
// one of x is larger than one of y, ties counting half, and how probable it is that
// groups of these sizes drawn at random are separated so far or farther, in either
// direction.
func separation(x, y []float64) (auc, chance float64) {
	ranks := midranks(slices.Concat(x, y))
	sum := 0 // of x's ranks, twice
	for _, r := range ranks[:len(x)] {
		sum += r
	}
	n, m := float64(len(x)), float64(len(y))
	auc = (float64(sum)/2 - n*(n+1)/2) / (n * m)
	if len(ranks) <= exactUpTo {
		return auc, exact(ranks, len(x), sum)
	}
	return auc, byLot(ranks, len(x), sum)
}

// midranks are the ranks of the values, from 1, twice, so that those of ties are
// whole: each of them gets the mean of the places they take.
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

// distance is how far from the middle a sum of n of the ranks is, in whole numbers:
// the middle is n·total/len(ranks).
func distance(ranks []int, n, total int) func(sum int) int {
	return func(sum int) int {
		d := len(ranks)*sum - n*total
		return max(d, -d)
	}
}

// Of how many groups drawn by lot byLot asks: so that the work for one fact is
// bounded in fleets of thousands, too, and the least that it can say (one of so many)
// stays well below what a hundred facts leave of five percent.
const (
	lotWork  = 4_000_000 // ranks added up
	fewLots  = 5_000
	mostLots = 20_000
)

// byLot draws groups of n of the ranks and counts those whose sum is as far from the
// middle as the given one, or farther; the given one counts as drawn, too, so that no
// chance is 0 and none is too small (Phipson and Smyth, Permutation p-values should
// never be zero, 2010). The lots are the same each time.
func byLot(ranks []int, n, sum int) float64 {
	total := 0
	for _, r := range ranks {
		total += r
	}
	if n > len(ranks)-n {
		n, sum = len(ranks)-n, total-sum
	}
	far := distance(ranks, n, total)
	limit := far(sum)
	lots := min(max(lotWork/n, fewLots), mostLots)
	random := rand.New(rand.NewPCG(1947, 2010))
	deck := slices.Clone(ranks)
	those := 1
	for range lots {
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
	return float64(those) / float64(lots+1)
}

// logChoose is the logarithm of the number of ways to choose k of n.
func logChoose(n, k int) float64 {
	f := func(x int) float64 {
		v, _ := math.Lgamma(float64(x) + 1)
		return v
	}
	return f(n) - f(k) - f(n-k)
}
