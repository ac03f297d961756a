package experiment

import (
	"math"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// errorRate is the probability that an experiment without a difference is ever stopped,
// however often it is looked at.
const errorRate = .05

// Failed is the measure of failed spin-ups. The other measures are the slow shares of the
// phases, under the names of the phases.
const Failed = "failed"

// Share is a share of spin-ups with its always-valid interval.
type Share struct {
	Count int     `json:"count"` // judged
	Hits  int     `json:"hits"`  // failed, or slow
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Verdict compares one measure of the two arms.
type Verdict struct {
	Measure   string `json:"measure"` // failed, or a phase
	Control   Share  `json:"control"`
	Treatment Share  `json:"treatment"`
	// Worse reports that the treatment's interval is above the control's.
	Worse bool `json:"worse"`
}

// judge compares two groups. The error rate is divided among the measures and arms
// (Bonferroni), so it holds for all of them together.
func judge(control, treatment spinup.Group) []Verdict {
	alpha := errorRate / float64(2*(1+len(spinup.Phases())))
	verdict := func(measure string, k1, n1, k2, n2 int) Verdict {
		v := Verdict{Measure: measure, Control: alwaysValid(k1, n1, alpha), Treatment: alwaysValid(k2, n2, alpha)}
		v.Worse = v.Treatment.Low > v.Control.High
		return v
	}
	out := []Verdict{verdict(Failed, control.Failed, control.Count-control.Stopped, treatment.Failed, treatment.Count-treatment.Stopped)}
	for _, a := range control.Phases {
		for _, b := range treatment.Phases {
			if a.Phase == b.Phase {
				out = append(out, verdict(string(a.Phase), a.Slow, a.Judged, b.Slow, b.Judged))
			}
		}
	}
	return out
}

// alwaysValid returns the interval of a share after k of n that holds at all n at once with
// probability 1 − alpha: it may be looked at after each observation. It contains each p for
// which the mixture likelihood ratio against p, with Jeffreys' prior, is below 1/alpha. That
// ratio is a martingale if p is true, so it ever reaches 1/alpha with probability alpha at
// most (Ville's inequality; Robbins, Statistical Methods Related to the Law of the Iterated
// Logarithm, 1970).
func alwaysValid(k, n int, alpha float64) Share {
	s := Share{Count: n, Hits: k, Low: 0, High: 1}
	if n == 0 || k < 0 || k > n {
		return s
	}
	hits, misses := float64(k), float64(n-k)
	mixture := logBeta(hits+.5, misses+.5) - logBeta(.5, .5)
	excluded := func(p float64) bool {
		return mixture-xlog(hits, p)-xlog(misses, 1-p) >= -math.Log(alpha)
	}
	at := hits / float64(n) // the ratio is lowest here, and grows to both sides
	s.Low, s.High = boundary(0, at, excluded), boundary(1, at, excluded)
	return s
}

// boundary returns where, between an end and at, p begins to be excluded; the end itself if
// it is not.
func boundary(end, at float64, excluded func(float64) bool) float64 {
	if !excluded(end) {
		return end
	}
	for range 50 { // to 2^-50
		middle := (end + at) / 2
		if excluded(middle) {
			end = middle
		} else {
			at = middle
		}
	}
	return end
}

// xlog returns x·ln(p), and 0 for no observation.
func xlog(x, p float64) float64 {
	if x == 0 {
		return 0
	}
	return x * math.Log(p)
}

func logBeta(a, b float64) float64 {
	x, _ := math.Lgamma(a)
	y, _ := math.Lgamma(b)
	z, _ := math.Lgamma(a + b)
	return x + y - z
}

// group returns the group of an arm.
func group(r spinup.FleetReport, arm holdfast.Arm) spinup.Group {
	for _, g := range r.Groups {
		if g.Name == string(arm) {
			return g
		}
	}
	return spinup.Group{Name: string(arm), Phases: []spinup.PhaseStats{}}
}
