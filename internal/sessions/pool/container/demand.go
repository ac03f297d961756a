package container

import (
	"cmp"
	"time"
)

// Demand is the highest number of claims within the last demandAge that came in a span
// too short to refill the pool.
const (
	demandAge   = time.Hour
	maxClaims   = 4096             // claims that are remembered
	guessedMake = time.Second      // assumed time to create a container, before the first one
	leastSpan   = 10 * time.Second // shortest span in which claims are counted
)

// demand counts the claims for containers of one template.
type demand struct {
	since  time.Time   // start of the count
	claims []time.Time // oldest first
	took   time.Duration
}

func (d *demand) claim(now time.Time) {
	if len(d.claims) >= maxClaims {
		d.claims = d.claims[1:]
	}
	d.claims = append(d.claims, now)
}

// made records how long the creation of a container took, as a moving mean of the last
// few.
func (d *demand) made(took time.Duration) {
	if d.took == 0 {
		d.took = took
	}
	d.took += (took - d.took) / 4
}

// want returns how many containers the pool keeps. For the first demandAge it is most.
// After that it is the highest number of claims within the time that creating most
// containers takes, at least one.
func (d *demand) want(most int, now time.Time) int {
	if now.Sub(d.since) < demandAge {
		return most
	}
	span := max(time.Duration(most)*cmp.Or(d.took, guessedMake), leastSpan)
	peak, first := 0, 0
	for i, at := range d.claims {
		if now.Sub(at) > demandAge {
			first = i + 1
			continue
		}
		for at.Sub(d.claims[first]) > span {
			first++
		}
		peak = max(peak, i-first+1)
	}
	return min(max(peak, 1), most)
}
