package spinup

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Change is the verdict of a comparison for a phase.
type Change string

// The verdicts. NoDifference does not mean that the groups are equal, only that
// these records do not show a difference.
const (
	Better       Change = "better"
	Worse        Change = "worse"
	NoDifference Change = "no difference shown"
	TooFew       Change = "too few"
)

// minCompared is the number of judged records that each side needs. With fewer, a
// bootstrap of medians is meaningless, and Fisher's test finds only extremes.
const minCompared = 8

// Difference is the difference between the second of two groups and the first, in
// one phase.
type Difference struct {
	Phase Phase `json:"phase"`
	// A and B are the judged records of each.
	A int `json:"judged_a"`
	B int `json:"judged_b"`
	// SlowA and SlowB are the slow shares. Slow is SlowB − SlowA with its
	// interval (Newcombe). P is the probability of shares at least as far
	// apart if there were no difference (Fisher's exact test, two-sided).
	SlowA float64 `json:"slow_share_a"`
	SlowB float64 `json:"slow_share_b"`
	Slow  Share   `json:"slow_difference"`
	P     float64 `json:"p"`
	// MedianA and MedianB are MiB/s or seconds. Ratio is B's ÷ A's with its
	// interval (bootstrap).
	MedianA float64 `json:"median_a"`
	MedianB float64 `json:"median_b"`
	Ratio   Share   `json:"median_ratio"`
	// SlowChange and MedianChange are the verdicts. A slow share may change
	// without the median, because it depends on the tail.
	SlowChange   Change `json:"slow_change"`
	MedianChange Change `json:"median_change"`
}

// compare returns how b differs from a, for each phase that both have. If several
// comparisons are read together, each is held to its part of the 5 %.
//
// Slow shares are compared by Fisher's exact test. Shares of 1 % in some hundred
// records are counts of a few, for which the normal approximation of the
// two-proportion test is wrong. Medians are compared by a bootstrap of their ratio:
// phases' times are skewed and heavy-tailed, so neither means nor their t-test say
// much. As each phase is tested, each test is held to 5 % ÷ (two tests × phases)
// (Bonferroni): in 95 of 100 comparisons of equal groups no phase is called better or
// worse.
func compare(a, b Group, comparisons int) []Difference {
	var pairs [][2]PhaseStats
	for _, x := range a.Phases {
		for _, y := range b.Phases {
			if x.Phase == y.Phase {
				pairs = append(pairs, [2]PhaseStats{x, y})
			}
		}
	}
	alpha := .05 / float64(2*max(len(pairs), 1)*max(comparisons, 1))
	out := []Difference{}
	for _, p := range pairs {
		out = append(out, difference(p[0], p[1], alpha))
	}
	return out
}

func difference(a, b PhaseStats, alpha float64) Difference {
	z := math.Sqrt2 * math.Erfinv(1-alpha)
	d := Difference{
		Phase: a.Phase, A: a.Judged, B: b.Judged,
		SlowA: a.Share.Value, SlowB: b.Share.Value,
		Slow:    newcombe(a.Slow, a.Judged, b.Slow, b.Judged, z),
		P:       fisher(a.Slow, a.Judged, b.Slow, b.Judged),
		MedianA: a.P50, MedianB: b.P50,
		SlowChange: TooFew, MedianChange: TooFew,
	}
	if min(a.Judged, b.Judged) < minCompared {
		d.Ratio = Share{Value: ratio(a.P50, b.P50)}
		return d
	}
	d.Ratio = medianRatio(a.values, b.values, alpha)
	d.SlowChange, d.MedianChange = NoDifference, NoDifference
	if d.P < alpha {
		d.SlowChange = change(d.SlowB < d.SlowA)
	}
	if more := a.Phase.IsRate(); d.Ratio.Low > 1 {
		d.MedianChange = change(more)
	} else if d.Ratio.High < 1 {
		d.MedianChange = change(!more)
	}
	return d
}

func change(better bool) Change {
	if better {
		return Better
	}
	return Worse
}

// newcombe returns the difference of two shares with its interval, from the Wilson
// intervals of both (R. G. Newcombe, Interval estimation for the difference
// between independent proportions, 1998, method 10).
func newcombe(k1, n1, k2, n2 int, z float64) Share {
	a, b := wilson(k1, n1, z), wilson(k2, n2, z)
	d := b.Value - a.Value
	return Share{
		Value: d,
		Low:   d - math.Hypot(b.Value-b.Low, a.High-a.Value),
		High:  d + math.Hypot(b.High-b.Value, a.Value-a.Low),
	}
}

// fisher returns the two-sided p of Fisher's exact test for k1 of n1 and k2 of n2:
// the probability of all tables with the same sums that are at most as likely as this
// one.
func fisher(k1, n1, k2, n2 int) float64 {
	k, n := k1+k2, n1+n2
	if n1 == 0 || n2 == 0 || k == 0 || k == n {
		return 1
	}
	all := choose(n, k)
	chance := func(x int) float64 { return choose(n1, x) + choose(n2, k-x) - all }
	seen := chance(k1)
	// Further than 40 standard deviations from the mean the sum is under 1e-300.
	share := float64(n1) / float64(n)
	mean, sd := float64(k)*share, math.Sqrt(float64(k)*share*(1-share)*float64(n-k)/float64(n-1))
	from, to := max(0, k-n2, int(mean-40*sd)), min(k, n1, int(mean+40*sd)+1)
	p := 0.
	for x := from; x <= to; x++ {
		if c := chance(x); c <= seen+1e-7 {
			p += math.Exp(c)
		}
	}
	return min(p, 1)
}

// choose returns the logarithm of the binomial coefficient n over k.
func choose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}

// rounds is the number of rounds of a bootstrap. It is enough for the 0.25 % on each
// side that remain for each of ten tests at 5 %.
const rounds = 2000

// maxSample bounds the values of a side that a bootstrap draws from. More values make
// it slower, and the interval hardly narrower.
const maxSample = 2000

// medianRatio returns the ratio of the medians of two sorted lists, b's ÷ a's, with
// the percentile bootstrap's interval at 1 − alpha. The result is deterministic,
// because the seed of the draws is fixed.
func medianRatio(x, y distribution, alpha float64) Share {
	draw := rand.New(rand.NewPCG(1, 2))
	a, b := x.thin(), y.thin()
	ratios := make([]float64, rounds)
	for i := range ratios {
		ratios[i] = ratio(drawnMedian(a, draw), drawnMedian(b, draw))
	}
	slices.Sort(ratios)
	all := distribution{values: ratios}
	return Share{
		Value: ratio(x.percentile(.5), y.percentile(.5)),
		Low:   all.percentile(alpha / 2), High: all.percentile(1 - alpha/2),
	}
}

// drawnMedian returns the median of a sample with replacement, of the same size, from
// sorted values. It counts the drawn ranks.
func drawnMedian(sorted []float64, draw *rand.Rand) float64 {
	n := len(sorted)
	counts := make([]int32, n)
	for range n {
		counts[draw.IntN(n)]++
	}
	left := int32((n + 1) / 2)
	for i, c := range counts {
		if left -= c; left <= 0 {
			return sorted[i]
		}
	}
	return sorted[n-1]
}

// maxRatio is the largest ratio. It also replaces an infinite one, which JSON cannot
// represent.
const maxRatio = 1e9

// ratio returns b ÷ a, or 1 if both are 0.
func ratio(a, b float64) float64 {
	switch {
	case a > 0:
		return min(b/a, maxRatio)
	case b <= 0:
		return 1
	}
	return maxRatio
}
