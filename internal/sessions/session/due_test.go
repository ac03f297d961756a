package session

import (
	"testing"
	"time"

	"holdfast"
	"holdfast/test/poll"
)

// Samples are taken often while memory grows or is near its limit, and rarely of an idle session.
func TestSamplesDue(t *testing.T) {
	now := time.Unix(1000, 0)
	const (
		mib  = 1 << 20
		busy = holdfast.Millis(time.Second) // of a CPU in a minute
	)
	for what, c := range map[string]struct {
		limit, before, last int64
		cpu                 holdfast.Millis // used between the two samples
		after               time.Duration
		want                bool
	}{
		"at once":                   {0, 10 * mib, 10 * mib, busy, time.Second, false},
		"quiet":                     {0, 10 * mib, 10 * mib, busy, quietPause, true},
		"idle":                      {0, 10 * mib, 10 * mib, 0, quietPause, false},
		"nearly idle":               {0, 10 * mib, 10 * mib, busy / 2, quietPause, false},
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

// A reader of the usage gets a sample that is not old, though an idle session has none.
func TestUsageIsFresh(t *testing.T) {
	n := newNode(t, setup{})
	n.serve(t, "alice")
	n.mu.Lock()
	kept := &n.sessions["alice"].end.memory
	for i := range kept.samples {
		kept.samples[i].At = kept.samples[i].At.Add(-idlePause)
	}
	n.mu.Unlock()
	u, err := n.Usage("alice")
	if err != nil || len(u.Samples) == 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	if last := u.Samples[len(u.Samples)-1]; time.Since(last.At) > quietPause || last.Memory == 0 {
		t.Errorf("%+v", last)
	}
}

// The memory of a container that has used no CPU time is taken from the sample before, for a
// minute, and not if it is near the limit.
func TestIdleMemoryIsReadRarely(t *testing.T) {
	n := newNode(t, setup{})
	n.serve(t, "alice")
	n.mu.Lock()
	group := n.sessions["alice"].target.Memory()
	n.mu.Unlock()
	var y memory
	take := func() bool {
		s, read, err := y.take(group)
		if err != nil {
			t.Fatal(err)
		}
		y.add(s, read)
		return read
	}
	last := func() int64 { return y.samples[len(y.samples)-1].Memory }
	if !take() || last() == 0 {
		t.Error("the first sample has no memory")
	}
	before := last()
	poll.Until(t, "the container is idle", func() bool {
		before = last()
		return !take()
	})
	if last() != before {
		t.Errorf("%d bytes after %d", last(), before)
	}
	y.read = y.read.Add(-readPause)
	if !take() {
		t.Error("the memory was not read again after a minute")
	}
	poll.Until(t, "the container is idle", func() bool { return !take() })
	y.limit = last() + last()/2
	if !take() {
		t.Error("the memory near the limit was not read")
	}
}
