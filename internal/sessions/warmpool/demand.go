package warmpool

import (
	"cmp"
	"time"
)

// How demand is counted: as the most claims that came, within demandAge, in a time in
// which a pool cannot be filled again.
const (
	demandAge   = time.Hour
	maxClaims   = 4096             // that are remembered
	guessedMake = time.Second      // what making a container takes, before any was made
	leastSpan   = 10 * time.Second // that claims are counted in
)

// demand is how many containers of a template are asked for.
type demand struct {
	since  time.Time   // counted since
	claims []time.Time // the oldest first
	took   time.Duration
}

func (d *demand) claim(now time.Time) {
	if len(d.claims) >= maxClaims {
		d.claims = d.claims[1:]
	}
	d.claims = append(d.claims, now)
}

// made takes note of what making one took: a moving mean of the last few.
func (d *demand) made(took time.Duration) {
	if d.took == 0 {
		d.took = took
	}
	d.took += (took - d.took) / 4
}

// want is how many containers are to wait: at first as many as may be, and once
// demandAge has passed as many as were asked for at most while so many are made,
// but one.
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
