package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/bench/rig"
	"holdfast/internal/platform/engine"
)

// probeEvery is the interval of the engine's own measurements.
const probeEvery = time.Second

// prober measures, under the load of the bench, the engine's time to create and start a
// container like a session's.
type prober struct {
	engine engine.Engine
	ticks  string // directory that sessions have mounted
	took   []float64
	bursts []float64 // of the engine alone, before the acts
	err    error
	mu     sync.Mutex // held through a probe, and while the engine is away
}

func newProber(e engine.Engine, ticks string) *prober {
	return &prober{engine: e, ticks: ticks}
}

// run probes until ctx is done.
func (p *prober) run(ctx context.Context) {
	for i := 0; sleep(ctx, probeEvery); i++ {
		took, err := p.probe(context.WithoutCancel(ctx), i)
		if err != nil {
			p.err = fmt.Errorf("probing the engine: %w", err)
			return
		}
		p.took = append(p.took, float64(took)/float64(time.Millisecond))
	}
}

func (p *prober) probe(ctx context.Context, i int) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	start := time.Now()
	id, err := p.bring(ctx, fmt.Sprintf("probe-%d", i))
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, p.engine.Remove(ctx, id)
}

// bring creates and starts a container like a session's.
func (p *prober) bring(ctx context.Context, name string) (string, error) {
	id, err := p.engine.Create(ctx, engine.Spec{
		Name: name, Image: image, Hostname: "probe",
		Env:     []string{"HOLDFAST_SESSION=probe", "HOLDFAST_EPOCH=1"},
		Mounts:  []engine.Mount{{Type: "bind", Source: p.ticks, Target: "/ticks"}},
		Restart: engine.RestartNo, Init: true, NoNewPrivileges: true,
	})
	if err == nil {
		err = p.engine.Start(ctx, id)
	}
	return id, err
}

// burst starts n containers, at most parallel of them concurrently. It returns the time
// at which each ran, in milliseconds since the beginning: the minimum duration of a
// handover of n sessions.
func (p *prober) burst(ctx context.Context, n, parallel int) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	took, ids := make([]float64, n), make([]string, n)
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(parallel)
	start := time.Now()
	for i := range n {
		work.Go(func() (err error) {
			ids[i], err = p.bring(ctx, fmt.Sprintf("burst-%d", i))
			took[i] = millis(time.Since(start))
			return err
		})
	}
	err := work.Wait()
	for _, id := range ids {
		if id != "" {
			err = errors.Join(err, p.engine.Remove(context.WithoutCancel(ctx), id))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("a burst of %d containers: %w", n, err)
	}
	return took, nil
}
