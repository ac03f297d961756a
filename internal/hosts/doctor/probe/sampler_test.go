package probe

import (
	"testing"
	"time"
)

// A sampler keeps the samples of the last three minutes, whatever their interval is.
func TestSamplerForgets(t *testing.T) {
	begin := time.Now()
	n := 0.0
	s := &sampler{take: func() map[string]float64 { n++; return map[string]float64{"n": n} }}
	for _, after := range []time.Duration{0, time.Second, time.Minute, 4 * time.Minute} {
		s.add(begin.Add(after))
	}
	if len(s.samples) != 2 || s.samples[0].of["n"] != 3 || s.samples[1].of["n"] != 4 {
		t.Errorf("%+v", s.samples)
	}
}
