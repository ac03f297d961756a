package probe

import (
	"context"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/tracepoint"
)

// namedFrom is the rate of drains per second from which their callers are named. Naming
// needs the kernel's symbols and a walk over the control groups.
const namedFrom = 50

// standingDrains is the standing form of drainsProbe.
func standingDrains() Standing {
	p := drainsProbe()
	return Standing{Name: p.Name, Sees: p.Sees, Gives: p.Gives, Open: func(_ context.Context, h Host, now time.Time) (Series, error) {
		t, _, err := countDrains(h)
		if err != nil {
			return nil, err
		}
		return &drainSeries{host: h, tally: t, at: now}, nil
	}}
}

type drainSeries struct {
	host  Host
	tally *tracepoint.Tally
	at    time.Time
}

func (d *drainSeries) Read(_ context.Context, now time.Time) ([]fact.Fact, error) {
	places, err := d.tally.Take()
	if err != nil {
		return nil, err
	}
	over := now.Sub(d.at)
	d.at = now
	if over <= 0 {
		return nil, nil
	}
	total := 0.0
	for _, p := range places {
		total += float64(p.Count) / over.Seconds()
	}
	fs := []fact.Fact{host(fact.Drains, total, fact.PerSecond)}
	if total < namedFrom {
		return fs, nil
	}
	symbols, err := d.host.LoadSymbols()
	_, by := countPlaces(newResolver(d.host, symbols), places, fact.DrainsBy, over)
	return append(fs, by...), err
}

func (d *drainSeries) Close() error { return d.tally.Close() }

// slowReclaimFrom is the duration above which a reclaim counts as slow. A healthy one
// takes 16 to 32 µs (docs/doctor.md).
const slowReclaimFrom = time.Millisecond

// standingReclaim is the standing form of reclaimProbe.
func standingReclaim() Standing {
	p := reclaimProbe()
	return Standing{Name: p.Name, Sees: p.Sees, Gives: append(p.Gives, fact.ReclaimSlow), Open: func(_ context.Context, _ Host, now time.Time) (Series, error) {
		l, err := tracepoint.ReclaimLatency()
		if err != nil {
			return nil, traceError(err)
		}
		return &reclaimSeries{latency: l, at: now}, nil
	}}
}

type reclaimSeries struct {
	latency *tracepoint.Latency
	at      time.Time
	before  tracepoint.Histogram
}

func (r *reclaimSeries) Read(_ context.Context, now time.Time) ([]fact.Fact, error) {
	all, err := r.latency.Read()
	if err != nil {
		return nil, err
	}
	over := now.Sub(r.at)
	h := all.Since(r.before)
	r.before, r.at = all, now
	if over <= 0 {
		return nil, nil
	}
	fs := []fact.Fact{
		host(fact.ReclaimCalls, float64(h.Count()), fact.Count),
		host(fact.ReclaimSlow, float64(h.Over(slowReclaimFrom))/over.Seconds(), fact.PerSecond),
	}
	if h.Count() > 0 { // without a reclaim there is no duration
		fs = append(fs, host(fact.ReclaimP50, ms(h.Quantile(0.5)), fact.Millis), host(fact.ReclaimP99, ms(h.Quantile(0.99)), fact.Millis))
	}
	return fs, nil
}

func (r *reclaimSeries) Close() error { return r.latency.Close() }
