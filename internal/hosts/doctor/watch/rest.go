package watch

import (
	"time"

	"holdfast/internal/platform/linux/hostload"
)

const (
	// restIdle is the share of the CPUs' time, from one interval to the next, in which
	// nothing ran and nothing waited for a disk on a host at rest. It is a judgement.
	restIdle = 0.9
	// restRounds is the number of intervals between two rounds on a host at rest, if they are
	// at most restMost.
	restRounds = 6
	restMost   = time.Minute
)

// rest lets rounds wait on a host at rest, where nothing slows anything, and most of what
// an agent costs are the rounds.
type rest struct {
	load    *hostload.Meter
	every   time.Duration // Config.Every
	skipped int           // intervals since the last round
}

// skip reports whether the round that is due can wait. It is called once each interval.
func (r *rest) skip(urgent bool) bool {
	idle, err := r.load.Idle()
	if urgent || err != nil || idle < restIdle || r.skipped+1 >= restRounds || time.Duration(r.skipped+2)*r.every > restMost {
		r.skipped = 0
		return false
	}
	r.skipped++
	return true
}
