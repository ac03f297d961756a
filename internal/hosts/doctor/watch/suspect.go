package watch

import (
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// suspicion is a cheap fact that justifies a burst, far below the threshold of a rule.
// The thresholds are judgements: a value too low costs a burst, a value too high costs
// ten minutes.
type suspicion struct {
	why  string
	fact string
	over float64
}

// suspicions lists the facts that each round checks.
func suspicions() []suspicion {
	return []suspicion{
		{"programs wait for CPUs", fact.CPUSome, 0.20},
		{"all programs waited for memory", fact.MemPSIFull, 0.01},
		{"all programs waited for disks", fact.IOFull, 0.10},
		{"reclaims of memory cgroups take over 1 ms", fact.ReclaimSlow, 1},
		{"many dying memory cgroups", fact.MemcgDying, 1000},
		{"the connection tracking table fills up", fact.ConnHost, 0.60},
	}
}

// maxWait bounds the delay of a suspicion whose bursts found nothing.
const maxWait = time.Hour

// bursts decides when to run a burst. It is pure: the time is a parameter.
type bursts struct {
	every, regular time.Duration // Config.BurstEvery, LookEvery
	last           time.Time     // when the last one ended
	hold           time.Duration // minimum pause after the last burst, by its cost
	wait           map[string]time.Duration
	next           map[string]time.Time // when a suspicion counts again
}

// settle is the minimum time from the start to the first burst, because a booting host is
// busy.
const settle = time.Minute

func newBursts(c Config, now time.Time) *bursts {
	last := now.Add(min(settle-c.BurstEvery, 0))
	return &bursts{every: c.BurstEvery, regular: c.LookEvery, last: last, wait: make(map[string]time.Duration), next: make(map[string]time.Time)}
}

// Reasons for a burst other than suspicions.
const (
	regularBurst = "regular"
	openFinding  = "a finding that only a burst can judge"
	slowSpinup   = "a slow spin-up"
)

// due returns the reason to run a burst now, "" for none. asked is a suspicion from
// another component, "" for none. unsure means that a finding is open that rounds cannot
// judge.
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
		return regularBurst
	}
	return ""
}

func (b *bursts) counts(why string, now time.Time) bool { return !now.Before(b.next[why]) }

// ended records a burst: its reason, when it ended, the pause that its cost requires, and
// whether it found anything. Each burst without a finding doubles the delay of its
// suspicion.
func (b *bursts) ended(why string, now time.Time, hold time.Duration, found bool) {
	b.last, b.hold = now, hold
	switch {
	case why == regularBurst || why == openFinding:
	case found:
		delete(b.wait, why)
		delete(b.next, why)
	default:
		b.wait[why] = min(max(2*b.wait[why], 2*b.every), max(maxWait, b.every))
		b.next[why] = now.Add(b.wait[why])
	}
}
