package watch

import (
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// suspicion is a cheap fact that is worth a deeper look, long before a rule would
// find anything. The thresholds are judgements: too low costs a look, too high ten
// minutes.
type suspicion struct {
	why  string
	fact string
	over float64
}

// suspicions are what is looked for in each round.
func suspicions() []suspicion {
	return []suspicion{
		{"programs wait for CPUs", fact.CPUSome, 0.20},
		{"all programs waited for memory", fact.MemPSIFull, 0.01},
		{"all programs waited for disks", fact.IOFull, 0.10},
		{"reclaims of memory cgroups take over 1 ms", fact.ReclaimSlow, 1},
		{"memory cgroups die slowly", fact.MemcgDying, 1000},
		{"the table of connections fills up", fact.ConnHost, 0.60},
	}
}

// maxWait is how long at most a suspicion waits that came to nothing.
const maxWait = time.Hour

// bursts decides when to look more deeply. It is pure: the time is given.
type bursts struct {
	every, regular time.Duration // Config.BurstEvery, LookEvery
	last           time.Time     // when the last one ended
	hold           time.Duration // after the last, at least: what it cost
	wait           map[string]time.Duration
	next           map[string]time.Time // when a suspicion counts again
}

// settle is how long after the begin the first look comes at the earliest: a host
// that comes up is busy with that.
const settle = time.Minute

func newBursts(c Config, now time.Time) *bursts {
	last := now.Add(min(settle-c.BurstEvery, 0))
	return &bursts{every: c.BurstEvery, regular: c.LookEvery, last: last, wait: make(map[string]time.Duration), next: make(map[string]time.Time)}
}

// Reasons for a look beside suspicions.
const (
	regularLook = "regular"
	openFinding = "a finding that only a deeper look can see"
	told        = "a slow spin-up"
)

// due is why to look now, "" for no reason. asked is what somebody else suspects,
// "" for nothing; unsure that a finding is open which rounds cannot judge.
func (b *bursts) due(now time.Time, facts map[string]float64, asked string, unsure bool) string {
	since := now.Sub(b.last)
	if since < max(b.every, b.hold) {
		return ""
	}
	if asked != "" && b.counts(asked, now) {
		return asked
	}
	for _, s := range suspicions() {
		if v, ok := facts[s.fact]; ok && v > s.over && b.counts(s.why, now) {
			return s.why
		}
	}
	if unsure {
		return openFinding
	}
	if since >= b.regular {
		return regularLook
	}
	return ""
}

func (b *bursts) counts(why string, now time.Time) bool { return !now.Before(b.next[why]) }

// ended takes note of a look: why it was made, when it ended, what it has to be
// waited for afterwards for what it cost, and whether it found anything. Of a
// suspicion that came to nothing the next waits twice as long.
func (b *bursts) ended(why string, now time.Time, hold time.Duration, found bool) {
	b.last, b.hold = now, hold
	switch {
	case why == regularLook || why == openFinding:
	case found:
		delete(b.wait, why)
		delete(b.next, why)
	default:
		b.wait[why] = min(max(2*b.wait[why], 2*b.every), max(maxWait, b.every))
		b.next[why] = now.Add(b.wait[why])
	}
}
