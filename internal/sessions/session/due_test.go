package session

import (
	"testing"
	"time"

	"holdfast"
)

// Samples are taken often while memory grows or is near its limit, and rarely of an idle session.
func TestSamplesDue(t *testing.T) {
	now := time.Unix(1000, 0)
	const mib = 1 << 20
	for what, c := range map[string]struct {
		limit, before, last int64
		cpu                 holdfast.Millis // used between the two samples
		after               time.Duration
		want                bool
	}{
		"at once":                   {0, 10 * mib, 10 * mib, 1, time.Second, false},
		"quiet":                     {0, 10 * mib, 10 * mib, 1, quietPause, true},
		"idle":                      {0, 10 * mib, 10 * mib, 0, quietPause, false},
		"idle for longer":           {0, 10 * mib, 10 * mib, 0, idlePause, true},
		"growing":                   {0, 10 * mib, 11 * mib, 1, time.Second, true},
		"over half of its limit":    {15 * mib, 10 * mib, 10 * mib, 0, time.Second, true},
		"under half of its limit":   {30 * mib, 10 * mib, 10 * mib, 0, time.Second, false},
		"growing, without CPU time": {0, 10 * mib, 11 * mib, 0, time.Second, true},
	} {
		y := memory{limit: c.limit, samples: []holdfast.UsageSample{{At: now.Add(-time.Minute), Memory: c.before, CPU: 7}, {At: now, Memory: c.last, CPU: 7 + c.cpu}}}
		if got := y.due(now.Add(c.after)); got != c.want {
			t.Errorf("%s: due %v, want %v", what, got, c.want)
		}
	}
	if y := (memory{samples: []holdfast.UsageSample{{At: now}}}); !y.due(now) {
		t.Error("a second sample is not due at once")
	}
}
