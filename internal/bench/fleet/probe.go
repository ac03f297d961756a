package fleet

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/engine"
)

// probeEvery is how often the engine itself is measured.
const probeEvery = time.Second

// prober measures, under the load of the bench, what the engine takes to create
// and start a container that is made as a session's is.
type prober struct {
	engine engine.Engine
	ticks  string // directory that sessions have mounted
	took   []float64
	err    error
	done   chan struct{}
}

func newProber(e engine.Engine, ticks string) *prober {
	return &prober{engine: e, ticks: ticks, done: make(chan struct{})}
}

// run probes until ctx is done.
func (p *prober) run(ctx context.Context) {
	defer close(p.done)
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
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	id, err := p.engine.Create(ctx, engine.Spec{
		Name: fmt.Sprintf("probe-%d", i), Image: image, Hostname: "probe",
		Env:     []string{"HOLDFAST_SESSION=probe", "HOLDFAST_EPOCH=1"},
		Mounts:  []engine.Mount{{Type: "bind", Source: p.ticks, Target: "/ticks"}},
		Restart: engine.RestartNo, Init: true, NoNewPrivileges: true,
	})
	if err == nil {
		err = p.engine.Start(ctx, id)
	}
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, p.engine.Remove(ctx, id)
}
