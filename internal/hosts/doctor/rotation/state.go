package rotation

import "time"

// action is what is to be done.
type action int

const (
	nothing action = iota
	drain
	comeBack
)

// state is how far a node is out of rotation. It is pure: time comes with each step.
type state struct {
	why   string    // it is degraded, "" where it is not
	since time.Time // when it became so
	bad   time.Time // when there was a critical finding last

	drained   bool      // by the doctor, and it takes no sessions since
	overruled bool      // a person had it take sessions again: it is not drained once more
	tried     time.Time // to drain
}

// step takes note of how things are: why the host is sick, "" where it is not, and
// whether the node refuses new sessions, whoever wants that.
func (s *state) step(c Config, now time.Time, sick string, refuses bool) action {
	if s.drained && !refuses {
		s.drained, s.overruled = false, true
	}
	switch {
	case sick != "":
		if s.why == "" {
			s.since = now
		}
		s.why, s.bad = sick, now
	case s.why != "" && now.Sub(s.bad) >= c.Recover:
		back := s.drained
		*s = state{}
		if back {
			return comeBack
		}
		return nothing
	}
	due := c.Drain == DrainAuto && sick != "" && now.Sub(s.since) >= c.DrainAfter
	if !due || refuses || s.overruled || now.Sub(s.tried) < min(again, c.DrainAfter) {
		return nothing
	}
	s.tried = now
	return drain
}
