package cli

import "time"

// meterWindow is the time over which a rate is averaged. It is long enough to smooth
// the engine's progress lines, which come at most ten times a second.
const meterWindow = 3 * time.Second

// meter is the rate of a growing value.
type meter struct{ samples []sample }

type sample struct {
	at time.Time
	n  int64
}

// add adds the current value. A smaller value than before resets the meter.
func (m *meter) add(at time.Time, n int64) {
	if k := len(m.samples); k > 0 && n < m.samples[k-1].n {
		m.samples = nil
	}
	m.samples = append(m.samples, sample{at, n})
	for len(m.samples) > 2 && at.Sub(m.samples[1].at) >= meterWindow {
		m.samples = m.samples[1:]
	}
}

// rate returns the growth per second, 0 if it is unknown.
func (m *meter) rate() float64 {
	if len(m.samples) < 2 {
		return 0
	}
	first, last := m.samples[0], m.samples[len(m.samples)-1]
	if d := last.at.Sub(first.at).Seconds(); d > 0 {
		return float64(last.n-first.n) / d
	}
	return 0
}

// left returns the remaining time at this rate, and false if it is unknown.
func (m *meter) left(rest int64) (time.Duration, bool) {
	r := m.rate()
	if rest <= 0 {
		return 0, true
	}
	if r <= 0 {
		return 0, false
	}
	return time.Duration(float64(rest) / r * float64(time.Second)), true
}
