package spinup

import (
	"math"
	"slices"
	"sort"
)

// distribution is a list of values in ascending order. The zero value is empty.
type distribution struct {
	values []float64
	// upTo[i] is the number of values up to values[i], which then stands for several.
	// nil: each value occurs once.
	upTo []int
}

func (d distribution) len() int {
	if n := len(d.upTo); n > 0 {
		return d.upTo[n-1]
	}
	return len(d.values)
}

// at returns the value with a rank from 0 to len()-1.
func (d distribution) at(rank int) float64 {
	if d.upTo == nil {
		return d.values[rank]
	}
	return d.values[sort.SearchInts(d.upTo, rank+1)]
}

// percentile returns the percentile q by nearest rank, or 0 if there are no values.
func (d distribution) percentile(q float64) float64 {
	n := d.len()
	if n == 0 {
		return 0
	}
	return d.at(min(max(int(math.Ceil(q*float64(n)))-1, 0), n-1))
}

// thin returns the values, or every so-manieth if there are more than maxSample.
func (d distribution) thin() []float64 {
	n := d.len()
	out := make([]float64, min(n, maxSample))
	for i := range out {
		out[i] = d.at(i * n / len(out))
	}
	return out
}

// gamma is the ratio of the bounds of two neighbouring buckets. The value that stands for a
// bucket differs by at most (gamma-1)/(gamma+1) from the others in it, which is 0.5 %
// (C. Masson, J. Rim, H. Lee: DDSketch, 2019, section 2.1).
const gamma = 1.01

// least is the upper bound of the first bucket, in seconds or MiB/s: all smaller values count
// as least. most bounds the indices, so that an answer of another host cannot have more.
const (
	least = 1e-6
	most  = 1 << 13 // gamma^most × least is over 1e29
)

// bucket returns the index of a value's bucket.
func bucket(v float64) int {
	if !(v > least) {
		return 0
	}
	return min(int(math.Ceil(math.Log(v/least)/math.Log(gamma))), most-1)
}

// middle returns the value that stands for a bucket.
func middle(i int) float64 {
	if i == 0 {
		return least
	}
	return least * 2 * math.Pow(gamma, float64(i)) / (gamma + 1)
}

// Buckets are the numbers of values in logarithmic buckets: At[i] is an index, in ascending
// order, and N[i] the number of values in it. Buckets of several hosts can be added, so
// that a percentile of all values is within 0.5 % of the exact one.
type Buckets struct {
	At []int `json:"at"`
	N  []int `json:"n"`
}

func (d distribution) buckets() Buckets {
	var b Buckets
	before := 0
	for i, v := range d.values {
		upTo := i + 1
		if d.upTo != nil {
			upTo = d.upTo[i]
		}
		if at := bucket(v); len(b.At) == 0 || b.At[len(b.At)-1] != at {
			b.At, b.N = append(b.At, at), append(b.N, 0)
		}
		b.N[len(b.N)-1] += upTo - before
		before = upTo
	}
	return b
}

// valid reports whether the buckets could be a host's answer, and have n values.
func (b Buckets) valid(n int) bool {
	if len(b.At) != len(b.N) || !slices.IsSorted(b.At) || len(b.At) > 0 && (b.At[0] < 0 || b.At[len(b.At)-1] >= most) {
		return false
	}
	for _, k := range b.N {
		if n -= k; k < 1 || n < 0 {
			return false
		}
	}
	return n == 0
}

// tallies are the sums of Buckets.
type tallies map[int]int

func (t tallies) add(b Buckets) {
	for i, at := range b.At {
		t[at] += b.N[i]
	}
}

func (t tallies) distribution() distribution {
	d := distribution{upTo: []int{}}
	sum := 0
	indices := make([]int, 0, len(t))
	for at := range t {
		indices = append(indices, at)
	}
	slices.Sort(indices)
	for _, at := range indices {
		sum += t[at]
		d.values, d.upTo = append(d.values, middle(at)), append(d.upTo, sum)
	}
	return d
}
