package cli

import "time"

// meterWindow is how far back a rate looks: long enough that a rate does not
// jump with each of the engine's lines, which come ten times a second at most.
const meterWindow = 3 * time.Second

// meter is the rate of something that grows.
type meter struct{ samples []sample }

type sample struct {
	at time.Time
	n  int64
}

// add takes how much it is now. Less than before begins anew.
func (m *meter) add(at time.Time, n int64) {
	if k := len(m.samples); k > 0 && n < m.samples[k-1].n {
		m.samples = nil
	}
	m.samples = append(m.samples, sample{at, n})
	for len(m.samples) > 2 && at.Sub(m.samples[1].at) >= meterWindow {
		m.samples = m.samples[1:]
	}
}

// rate is growth per second, 0 where it is not known yet.
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

// left is how long the rest takes at this rate, and false where that cannot be
// said.
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
