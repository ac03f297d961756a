package probe

import (
	"context"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// growthProbe measures how fast containers with a memory limit take memory that the kernel
// cannot reclaim: anonymous and shared memory of memory.stat (cgroup-v2.rst, cgroup-v1/memory.rst).
func growthProbe() Probe {
	return Probe{
		Name: "growth", Sees: "containers that will reach their memory limit",
		Gives: []string{fact.GroupHeld, fact.GroupGrowth, fact.GroupGrowthLow, fact.GroupGrowthHigh},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			sampling, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Read uses it later
			g := &growth{host: h, cancel: cancel, done: make(chan struct{})}
			g.sample(now)
			go g.run(sampling)
			return g, nil
		},
	}
}

// Samples of memory are taken every growthEvery; the latest maxGrowth are kept.
const (
	growthEvery = time.Second
	maxGrowth   = 90
)

// growth is a Series that samples memory between its readings.
type growth struct {
	host    Host
	cancel  context.CancelFunc
	done    chan struct{}
	samples []memorySample // of its goroutine, until done is closed
}

// memorySample is the memory of each group with a limit at one time, in bytes.
type memorySample struct {
	at   time.Time
	held map[string]float64
}

func (g *growth) run(ctx context.Context) {
	defer close(g.done)
	for pause(ctx, growthEvery) {
		g.sample(time.Now())
	}
}

func (g *growth) sample(now time.Time) {
	held := make(map[string]float64)
	for _, m := range g.host.Groups {
		if !m.V2 && !slices.Contains(m.Controllers, "memory") {
			continue
		}
		// Only containers: other groups have no limit of their own as a rule, and their
		// growth is the host's.
		_ = walkContainers(m, func(p, dir string) { // a group that cannot be read has no growth
			s := make(sample)
			if m.V2 {
				s.single("limit", dir+"/memory.max")
			} else {
				s.single("limit", dir+"/memory.limit_in_bytes")
			}
			if limit, ok := s["limit"]; !ok || limit >= noLimit {
				return
			}
			if m.V2 {
				s.pick(dir+"/memory.stat", map[string]string{"anon": "held", "shmem": "held"})
			} else {
				s.pick(dir+"/memory.stat", map[string]string{"total_rss": "held", "total_shmem": "held"})
			}
			if v, ok := s["held"]; ok {
				held[p] = v
			}
		})
	}
	g.samples = append(g.samples, memorySample{now, held})
	if len(g.samples) > maxGrowth {
		g.samples = slices.Delete(g.samples, 0, 1)
	}
}

func (g *growth) Close() error {
	g.cancel()
	<-g.done
	return nil
}

// thirds is the number of parts of an examination in each of which a leak grows.
const thirds = 3

// Read ends the sampling: an examination reads once.
func (g *growth) Read(_ context.Context, now time.Time) ([]fact.Fact, error) {
	_ = g.Close()
	g.sample(now)
	var fs []fact.Fact
	last := g.samples[len(g.samples)-1]
	for p, held := range last.held {
		of := func(name string, v float64, u fact.Unit) {
			fs = append(fs, fact.Fact{Name: name, Value: v, Unit: u, Subject: fact.Subject{Cgroup: p}})
		}
		of(fact.GroupHeld, held, fact.Bytes)
		if mean, low, high, ok := rates(g.samples, p); ok && low > 0 {
			of(fact.GroupGrowth, mean, fact.Bytes)
			of(fact.GroupGrowthLow, low, fact.Bytes)
			of(fact.GroupGrowthHigh, high, fact.Bytes)
		}
	}
	return fs, nil
}

// rates returns the growth of a group per second: over all samples, and in the thirds in which
// it grew least and most.
func rates(samples []memorySample, group string) (mean, low, high float64, ok bool) {
	n := len(samples)
	if n < 2*thirds {
		return 0, 0, 0, false
	}
	rate := func(from, to int) (float64, bool) {
		a, ok1 := samples[from].held[group]
		b, ok2 := samples[to].held[group]
		over := samples[to].at.Sub(samples[from].at).Seconds()
		return (b - a) / over, ok1 && ok2 && over > 0
	}
	if mean, ok = rate(0, n-1); !ok {
		return 0, 0, 0, false
	}
	low, high = mean, mean
	for i := range thirds {
		v, ok := rate(i*(n-1)/thirds, (i+1)*(n-1)/thirds)
		if !ok {
			return 0, 0, 0, false
		}
		low, high = min(low, v), max(high, v)
	}
	return mean, low, high, true
}
