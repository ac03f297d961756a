package schedule

import (
	"fmt"
	"time"

	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/fact"
)

// limits are the figures of a host that a cure must not raise. The thresholds are
// judgements: clearly more than a healthy host varies from minute to minute.
type limit struct {
	fact string
	what string
	unit fact.Unit
	// pressure is the value of one round from which on no cure begins; 0: none.
	pressure float64
	// more and times: it is harm if the mean after a cure is that much more than the mean
	// before, and that many times as much.
	more, times float64
}

// limits returns the limits. Kernels without PSI (CONFIG_PSI, Linux 4.20) have the stalled
// allocations instead of the time that stalled on memory, and the disks' busy time.
func limits() []limit {
	return []limit{
		{fact.MemPSIFull, "time stalled on memory", fact.Share, 0.02, 0.05, 1.5},
		{fact.IOFull, "time stalled on disks", fact.Share, 0.20, 0.20, 1.5},
		{fact.AllocStalls, "allocations that had to reclaim memory", fact.PerSecond, 50, 100, 2},
		{fact.DiskBusy, "busy time of the busiest disk", fact.Share, 0.95, 0.5, 2},
		{fact.DiskAwait, "wait of the slowest disk", fact.Millis, 0, 20, 2},
		{fact.GroupRefaults, "pages read again in one container", fact.PerSecond, 0, 1000, 2},
		{fact.ReclaimP99, "reclaim of a memory cgroup, p99", fact.Millis, 0, 10, 2},
	}
}

// Numbers of rounds of the doctor.
const (
	fewRounds  = 3 // before a cure may run, and after it before it is judged
	keptRounds = 6
	// maxRoundAge is the age from which on a round says nothing about the present.
	maxRoundAge = 3 * time.Minute
	// judgeLimit bounds the wait for the rounds after a cure.
	judgeLimit = 30 * time.Minute
)

// round is the host's figures in one round of the doctor.
type round struct {
	at    time.Time
	facts map[string]float64
}

// rounds are the last rounds, the oldest first.
type rounds []round

// add adds a round unless it is there.
func (r rounds) add(one round) rounds {
	if one.at.IsZero() || len(r) > 0 && !one.at.After(r[len(r)-1].at) {
		return r
	}
	if len(r) == keptRounds {
		r = r[1:]
	}
	return append(r, one)
}

// hinders returns why no cure may begin now, "" if it may.
func (r rounds) hinders(now time.Time) string {
	if len(r) < fewRounds || now.Sub(r[len(r)-1].at) > maxRoundAge {
		return "the doctor has too few figures of the last minutes"
	}
	for _, l := range limits() {
		for _, one := range r {
			if v, ok := one.facts[l.fact]; ok && l.pressure > 0 && v >= l.pressure {
				return fmt.Sprintf("the host is under pressure: %s is %s, from %s on no cure runs", l.what, format(v, l.unit), format(l.pressure, l.unit))
			}
		}
	}
	return ""
}

func format(v float64, u fact.Unit) string {
	if u == fact.Share {
		return fmt.Sprintf("%.1f %%", 100*v)
	}
	return fmt.Sprintf("%.4g %s", v, u)
}

// mean returns the mean of a figure over the rounds that have it.
func (r rounds) mean(name string) (float64, bool) {
	sum, n := 0.0, 0
	for _, one := range r {
		if v, ok := one.facts[name]; ok {
			sum += v
			n++
		}
	}
	return sum / float64(max(n, 1)), n > 0
}

// compare returns the figures before and after a cure, and the harm, "" for none. A figure
// that appears only afterwards was 0: the doctor has no figure of reclaims without
// reclaims.
func compare(before, after rounds) (figures []cure.Figure, harm string) {
	for _, l := range limits() {
		a, _ := before.mean(l.fact)
		b, ok := after.mean(l.fact)
		if !ok {
			continue
		}
		figures = append(figures, cure.Figure{What: l.what, Unit: string(l.unit), Before: a, After: b})
		if b-a >= l.more && b >= l.times*a && harm == "" {
			harm = fmt.Sprintf("%s rose from %s to %s", l.what, format(a, l.unit), format(b, l.unit))
		}
	}
	for _, f := range []struct {
		name, what string
		unit       fact.Unit
	}{{fact.MemcgDying, "dying memory cgroups", fact.Count}, {fact.SlabReclaim, "slab that can be reclaimed", fact.Bytes}} {
		a, ok := before.mean(f.name)
		if b, ok2 := after.mean(f.name); ok && ok2 {
			figures = append(figures, cure.Figure{What: f.what, Unit: string(f.unit), Before: a, After: b})
		}
	}
	return figures, harm
}
