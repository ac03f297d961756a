package protect

import (
	"math"
	"time"
)

// Quantiles are waits that 50, 90 and 99 % of the connections did not exceed.
type Quantiles struct {
	P50 time.Duration `json:"p50_ns"`
	P90 time.Duration `json:"p90_ns"`
	P99 time.Duration `json:"p99_ns"`
}

const (
	// firstWait is the end of the first bucket of a histogram of waits, and waitStep the
	// ratio of two ends: a quantile is up to 5 % too long. waitBuckets reach 20 minutes.
	firstWait   = 100 * time.Microsecond
	waitStep    = 1.05
	waitBuckets = 340
)

// Waits is a histogram of the waits of connections. The zero value is ready. It is for one
// goroutine at a time.
type Waits struct {
	counts [waitBuckets]int
	total  int
}

// Add counts n connections that waited for d.
func (w *Waits) Add(d time.Duration, n int) {
	i := 0
	if d > firstWait {
		i = int(math.Ceil(math.Log(float64(d)/float64(firstWait)) / math.Log(waitStep)))
	}
	w.counts[min(i, waitBuckets-1)] += n
	w.total += n
}

// Quantiles returns the quantiles, or nil if no connection was counted. longest is the longest
// wait. No quantile exceeds it.
func (w *Waits) Quantiles(longest time.Duration) *Quantiles {
	if w.total == 0 {
		return nil
	}
	at := func(share float64) time.Duration {
		rank, seen := int(math.Ceil(share*float64(w.total))), 0
		for i, n := range w.counts {
			if seen += n; seen >= rank {
				return min(longest, time.Duration(float64(firstWait)*math.Pow(waitStep, float64(i))))
			}
		}
		return longest
	}
	return &Quantiles{P50: at(0.5), P90: at(0.9), P99: at(0.99)}
}
