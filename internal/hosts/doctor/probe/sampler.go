package probe

import (
	"context"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/tasks"
)

// keptSamples is for how long samples are kept: a longer examination is judged by its end.
const keptSamples = 3 * time.Minute

// levels holds amounts at one time, by name.
type levels struct {
	at time.Time
	of map[string]float64
}

// sampler takes samples from Open to the one reading of an examination.
type sampler struct {
	take    func() map[string]float64
	after   func(samples []levels) // called after each sample but the last; may be nil
	cancel  context.CancelFunc
	done    chan struct{}
	samples []levels // of its goroutine, until done is closed
}

// sampling starts a sampler. It samples until end or close is called.
func sampling(ctx context.Context, now time.Time, every time.Duration, take func() map[string]float64, after func([]levels)) *sampler {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives Open
	s := &sampler{take: take, after: after, cancel: cancel, done: make(chan struct{})}
	s.add(now)
	go func() {
		defer close(s.done)
		for tasks.Sleep(ctx, every) == nil {
			s.add(time.Now())
			if s.after != nil {
				s.after(s.samples)
			}
		}
	}()
	return s
}

func (s *sampler) add(now time.Time) {
	s.samples = append(s.samples, levels{now, s.take()})
	old := 0
	for now.Sub(s.samples[old].at) > keptSamples {
		old++
	}
	s.samples = slices.Delete(s.samples, 0, old)
}

// close ends the sampling.
func (s *sampler) close() {
	s.cancel()
	<-s.done
}

// end takes the last sample and returns all.
func (s *sampler) end(now time.Time) []levels {
	s.close()
	s.add(now)
	return s.samples
}

// sampled is a Series of facts about samples, which an examination reads once.
type sampled struct {
	*sampler
	facts func(samples []levels) []fact.Fact
}

func (s sampled) Close() error {
	s.close()
	return nil
}

func (s sampled) Read(_ context.Context, now time.Time) ([]fact.Fact, error) {
	return s.facts(s.end(now)), nil
}

// thirds is the number of parts of an examination in each of which a leak grows.
const thirds = 3

// growth is by how much an amount grew each second: over all samples, and in the thirds in
// which it grew least and most.
type growth struct{ mean, low, high float64 }

// growthOf returns the growth of an amount, false if there are not enough samples of it.
func growthOf(samples []levels, name string) (g growth, ok bool) {
	n := len(samples)
	if n < 2*thirds {
		return g, false
	}
	rate := func(from, to int) (float64, bool) {
		a, ok1 := samples[from].of[name]
		b, ok2 := samples[to].of[name]
		over := samples[to].at.Sub(samples[from].at).Seconds()
		return (b - a) / over, ok1 && ok2 && over > 0
	}
	if g.mean, ok = rate(0, n-1); !ok {
		return growth{}, false
	}
	g.low, g.high = g.mean, g.mean
	for i := range thirds {
		v, ok := rate(i*(n-1)/thirds, (i+1)*(n-1)/thirds)
		if !ok {
			return growth{}, false
		}
		g.low, g.high = min(g.low, v), max(g.high, v)
	}
	return g, true
}
