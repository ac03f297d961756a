package spinup

import "math"

// Range is the 95 % confidence interval of a percentile. If there are too few
// values to determine an end, that end is unknown, and Low or High is the minimum
// or maximum value.
type Range struct {
	Low       float64 `json:"low"`
	High      float64 `json:"high"`
	LowKnown  bool    `json:"low_known"`
	HighKnown bool    `json:"high_known"`
}

// spread returns the Range of the percentile q of the distribution from which the values
// were drawn. It makes no assumption about the distribution: how many of n
// values lie below the true percentile is binomial, so two of the values enclose
// it (H. A. David, Order Statistics, 7.1).
func (d distribution) spread(q float64) Range {
	n := d.len()
	if n == 0 {
		return Range{}
	}
	// below is the probability that at most k values lie below the percentile. low is
	// the greatest rank for which the probability of fewer values is at most 2.5 %.
	// high is the least rank for which the probability of that many or more is at most
	// 2.5 %. Ranks begin at 1.
	// The first ranks have no share: nine standard deviations below the mean it is under
	// 1e-18.
	low, high, below := 0, n+1, 0.
	mean := float64(n) * q
	for k := max(0, int(mean-9*math.Sqrt(mean*(1-q)))); k < n; k++ {
		below += math.Exp(choose(n, k) + float64(k)*math.Log(q) + float64(n-k)*math.Log(1-q))
		if below <= .025 {
			low = k + 1
		}
		if below >= .975 {
			high = k + 1
			break
		}
	}
	return Range{
		Low: d.at(max(low, 1) - 1), High: d.at(min(high, n) - 1),
		LowKnown: low >= 1, HighKnown: high <= n,
	}
}
