package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/internal/platform/engine"
)

// gcSample is one create: when it was due, and its latency from then on.
type gcSample struct {
	at, took time.Duration
	err      error
}

// gcRound has the latencies of creates while one way collected.
type gcRound struct {
	name     string
	samples  []gcSample
	from, to time.Duration // start and end of the collection
	failed   int
	low      bool  // the disk was under the low mark at the end
	freed    int64 // bytes
}

func (r gcRound) latencies() []float64 {
	var ms []float64
	for _, s := range r.samples {
		ms = append(ms, millis(s.took))
	}
	return ms
}

func (r gcRound) slow() int {
	n := 0
	for _, s := range r.samples {
		if s.took > slowCreate {
			n++
		}
	}
	return n
}

func (r gcRound) note() string {
	s := fmt.Sprintf("%s: %d of %d creates over 1 s (%.1f %%)", r.name, r.slow(), len(r.samples), 100*float64(r.slow())/float64(max(len(r.samples), 1)))
	if r.to == 0 {
		return s
	}
	mark := "under"
	if !r.low {
		mark = "not under"
	}
	return fmt.Sprintf("%s; it took %.1f s, freed %d MiB, the disk is %s the low mark", s, (r.to - r.from).Seconds(), r.freed>>20, mark)
}

// load creates containers at the rate until ctx is done and returns when the last
// create has ended. The load is an open loop: a stall delays all creates that are due
// in it.
func (x *gcBench) load(ctx context.Context, begin time.Time) []gcSample {
	var (
		creating sync.WaitGroup
		mu       sync.Mutex
		samples  []gcSample
	)
	every := time.Duration(float64(time.Second) / x.o.Rate)
	tick := time.NewTimer(0)
	defer tick.Stop()
	for i := 0; ; i++ {
		due := begin.Add(time.Duration(i) * every)
		tick.Reset(time.Until(due))
		select {
		case <-tick.C:
		case <-ctx.Done():
			creating.Wait()
			slices.SortFunc(samples, func(a, b gcSample) int { return int(a.at - b.at) })
			return samples
		}
		creating.Go(func() {
			s := gcSample{at: due.Sub(begin)}
			s.took, s.err = x.spinUp(context.WithoutCancel(ctx), fmt.Sprintf("create-%d", due.UnixNano()), due)
			mu.Lock()
			samples = append(samples, s)
			mu.Unlock()
		})
	}
}

// createLimit bounds a create on an engine that hangs.
const createLimit = 5 * time.Minute

// spinUp creates a container and removes it again. The removal is not measured. The
// spin-up is registered until the create has ended.
func (x *gcBench) spinUp(ctx context.Context, name string, due time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	e, err := x.list.Begin("run", name, createLimit)
	if err != nil {
		return time.Since(due), err
	}
	defer func() { _ = x.list.End(e.ID) }() // an error means that it has expired
	return x.spinUpOf(ctx, gcBase, name, due)
}

// spinUpOf creates a container of an image and removes it again.
func (x *gcBench) spinUpOf(ctx context.Context, image, name string, due time.Time) (time.Duration, error) {
	id, err := x.create(ctx, image, name)
	took := time.Since(due)
	if err != nil {
		return took, err
	}
	return took, x.engine.Remove(ctx, id)
}

func (x *gcBench) create(ctx context.Context, image, name string) (string, error) {
	return x.engine.Create(ctx, engine.Spec{Name: name, Image: image, Restart: engine.RestartNo})
}
