package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/client"
	"holdfast/internal/platform/tasks"
)

const (
	// refillRate is how many sessions a second boot beside the pool, on average. Their gaps
	// are random, so a boot may begin at any moment of the creation of a warm container.
	refillRate = 3
	// refillPool is the number of warm containers of the other template.
	refillPool = 24
	// pooledTemplate is the name of that template.
	pooledTemplate = "pooled"
)

// RefillDetails compares boots while a pool refills with boots while it is full.
type RefillDetails struct {
	Rounds []RefillPair `json:"rounds"`
	// Made is the number of warm containers that were made during the boots, in all rounds.
	Made int `json:"made"`
}

// RefillPair is a round.
type RefillPair struct {
	Full      Row `json:"full"`
	Refilling Row `json:"refilling"`
}

// refills boots sessions of a template without warm containers, in turns from the moment at
// which sessions have taken the whole pool of another template, and when it is full again.
// In both turns as many other sessions run.
func (x *bootBench) refills(ctx context.Context, r *Result, d *BootDetails) error {
	if x.o.Refill == 0 {
		return nil
	}
	m := bootMode{name: "refill", template: "network: pooled", pooled: true, spare: refillPool}
	d.Refill = &RefillDetails{}
	var full, refilling []float64
	err := x.with(ctx, []bootMode{m}, func(agents []*bootAgent) error {
		for round := range x.o.BurstRounds {
			took := make([][]float64, 2)
			for n := range took {
				k := (round + n) % 2
				fmt.Fprintf(x.o.Progress, "%d boots beside a pool, turn %d of %d\n", x.o.Refill, 2*round+n+1, 2*x.o.BurstRounds)
				made, boots, err := x.besidePool(ctx, agents[0], k == 1, round)
				if err != nil {
					return err
				}
				d.Refill.Made += made
				took[k] = boots
			}
			d.Refill.Rounds = append(d.Refill.Rounds, RefillPair{NewRow("full", "ms", took[0]), NewRow("refilling", "ms", took[1])})
			full, refilling = append(full, took[0]...), append(refilling, took[1]...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	a, b := NewRow("session, the pool beside it full", "ms", full), NewRow("session, the pool beside it refills", "ms", refilling)
	r.Rows = append(r.Rows, a, b)
	r.Notes = append(r.Notes, fmt.Sprintf("while a pool refills: p50 %.2f times, p99 %.2f times that beside a full pool; %d containers were made during %d boots",
		b.P50/a.P50, b.P99/a.P99, d.Refill.Made, len(refilling)))
	return nil
}

// besidePool boots the sessions of one turn, and returns their waits in ms and how many warm
// containers were made meanwhile. Sessions take the whole pool first. Without empty the
// boots begin when it is full again.
func (x *bootBench) besidePool(ctx context.Context, a *bootAgent, empty bool, round int) (made int, took []float64, err error) {
	if err := settleAll(ctx, x, []*bootAgent{a}, fillLimit(refillPool+x.o.Refill)); err != nil {
		return 0, nil, err
	}
	random := rand.New(rand.NewPCG(uint64(round), 0)) // the same gaps in both turns
	if err := x.takePool(ctx, a); err != nil {
		return 0, nil, err
	}
	if !empty {
		if err := x.refilled(ctx, a); err != nil {
			return 0, nil, err
		}
	}
	took = make([]float64, x.o.Refill)
	var boots errgroup.Group
	for i := range took {
		time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second) / refillRate))
		boots.Go(func() error {
			t, err := x.sessionBoot(ctx, a, i)
			took[i] = millis(t)
			return err
		})
	}
	if err := boots.Wait(); err != nil {
		return 0, nil, err
	}
	if empty {
		n, err := a.containers(ctx)
		if err != nil {
			return 0, nil, err
		}
		made = n - refillPool - len(took)
	}
	list, err := a.sessions(ctx, x.client)
	if err != nil {
		return 0, nil, err
	}
	return made, took, x.removeAll(ctx, a, list)
}

// refilled waits until the pool is full beside the sessions that took it.
func (x *bootBench) refilled(ctx context.Context, a *bootAgent) error {
	ctx, cancel := context.WithTimeout(ctx, fillLimit(refillPool))
	defer cancel()
	for {
		n, err := a.containers(ctx)
		if err != nil || n == 2*refillPool {
			return err
		}
		if tasks.Sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the pool is not full: the engine has %d containers, want %d: %w", n, 2*refillPool, ctx.Err())
		}
	}
}

// takePool starts a session in each warm container.
func (x *bootBench) takePool(ctx context.Context, a *bootAgent) error {
	c, err := client.New(client.Options{Socket: filepath.Join(x.dir, a.mode.name, "run", "s")})
	if err != nil {
		return err
	}
	defer c.Close()
	var all errgroup.Group
	for i := range refillPool {
		all.Go(func() error {
			_, err := c.StartSession(ctx, holdfast.SessionKey(fmt.Sprintf("%s-%d", pooledTemplate, i)), pooledTemplate)
			return err
		})
	}
	return all.Wait()
}
