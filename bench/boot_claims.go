package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// claims requests sessions at a fixed rate from an agent of its own that has a warm
// container for each. The containers stay until the end: removing them is the engine's
// work and not part of a claim.
func (x *bootBench) claims(ctx context.Context, r *Result, _ *BootDetails) error {
	if x.o.Claims == 0 {
		return nil
	}
	m := bootMode{
		name: "claims", row: fmt.Sprintf("session, warm, %d claims at %g/s", x.o.Claims, x.o.Rate),
		template: fmt.Sprintf("network: pooled, warm: %d", x.o.Claims), warm: true, pooled: true,
	}
	return x.with(ctx, []bootMode{m}, func(agents []*bootAgent) error {
		fmt.Fprintf(x.o.Progress, "warming %d containers\n", x.o.Claims)
		if err := settleAll(ctx, x, agents, fillLimit(x.o.Claims)); err != nil {
			return err
		}
		took, err := x.rate(ctx, agents[0])
		if err != nil {
			return err
		}
		row := NewRow(m.row, "ms", took)
		r.Rows = append(r.Rows, row)
		r.Notes = append(r.Notes, fmt.Sprintf("%s: p50 %s ms, p99 %s ms", row.Name, figure(row.P50), figure(row.P99)))
		return nil
	})
}

// fillLimit returns the time limit for filling a pool of that many warm containers
// while as many others are removed.
func fillLimit(n int) time.Duration { return bootLimit + time.Duration(n)*claimFill }

// rate sends the claims at their rate and returns the duration of each in ms.
func (x *bootBench) rate(ctx context.Context, a *bootAgent) ([]float64, error) {
	took := make([]float64, x.o.Claims)
	all, gctx := errgroup.WithContext(ctx)
	every := time.NewTicker(time.Duration(float64(time.Second) / x.o.Rate))
	defer every.Stop()
	for i := range took {
		select {
		case <-every.C:
		case <-gctx.Done():
			return nil, all.Wait()
		}
		all.Go(func() error {
			t, err := x.sessionBoot(gctx, a, i)
			took[i] = millis(t)
			return err
		})
	}
	return took, all.Wait()
}
