package rotation

import "time"

// action is the action to take.
type action int

const (
	nothing action = iota
	drain
	undrain
)

// state is the rotation state of a node. It is pure: the time is a parameter of each
// step.
type state struct {
	why   string    // why the node is degraded, "" if it is not
	since time.Time // when it became degraded
	bad   time.Time // time of the last critical finding

	drained   bool      // the doctor has drained the node, and it accepts no sessions since
	overruled bool      // the operator returned the node to rotation: it is not drained again
	tried     time.Time // time of the last attempt to drain
}

// step processes the current situation: why the host is sick, "" if it is not, and
// whether the node accepts no new sessions for any reason. It returns the action to take.
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
			return undrain
		}
		return nothing
	}
	due := c.Drain == DrainAuto && sick != "" && now.Sub(s.since) >= c.DrainAfter
	if !due || refuses || s.overruled || now.Sub(s.tried) < min(retryEvery, c.DrainAfter) {
		return nothing
	}
	s.tried = now
	return drain
}
