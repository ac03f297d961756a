package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// claimFill is how long one warm container may take to be made, on a busy machine.
const claimFill = 5 * time.Second

// claims has sessions come at a rate to a pool that has a warm container for each of
// them, by an agent of its own. The containers stay until its end: removing them is
// the engine's work, and not a claim's.
func (x *bootBench) claims(ctx context.Context) (Row, error) {
	m := bootMode{
		name: "claims", row: fmt.Sprintf("session, warm, %d claims at %g/s", x.o.Claims, x.o.Rate),
		template: fmt.Sprintf("network: bridge, warm: %d", x.o.Claims), warm: true,
	}
	a, err := x.startAgent(ctx, m)
	if a != nil {
		x.agents = append(x.agents, a)
	}
	if err != nil {
		return Row{}, err
	}
	fmt.Fprintf(x.o.Progress, "warming %d containers\n", x.o.Claims)
	filling, cancel := context.WithTimeout(ctx, bootLimit+time.Duration(x.o.Claims)*claimFill)
	defer cancel()
	if err := a.settle(filling, x); err != nil {
		return Row{}, fmt.Errorf("waiting for %d warm containers: %w", x.o.Claims, err)
	}
	took := make([]float64, x.o.Claims)
	all, gctx := errgroup.WithContext(ctx)
	every := time.NewTicker(time.Duration(float64(time.Second) / x.o.Rate))
	defer every.Stop()
	for i := range took {
		select {
		case <-every.C:
		case <-gctx.Done():
			return Row{}, all.Wait()
		}
		all.Go(func() error {
			t, err := x.sessionBoot(gctx, a, i)
			took[i] = millis(t)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return Row{}, err
	}
	return NewRow(m.row, "ms", took), nil
}
