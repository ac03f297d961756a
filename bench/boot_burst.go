package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// BurstDetails compares bursts at an agent with warm containers with bursts of as many
// sessions at an agent without.
type BurstDetails struct {
	Sessions int         `json:"sessions"`
	Warm     int         `json:"warm"`
	Rounds   []BurstPair `json:"rounds,omitempty"`
	// CPU has the CPU time of a boot in ms for each kind of burst: that of all processes in
	// the lab from the requests to the last answer, by boots. A sample is a round.
	CPU []Row `json:"cpu"`
	// Worst is the rank with the highest ratio of waits, with warm containers against
	// without, by medians of the rounds. A ratio of at most 1 says that warm
	// containers made no session wait longer. Like Rounds, it needs bursts of both kinds.
	Worst BurstRank `json:"worst,omitzero"`
}

// BurstPair is a burst without warm containers and one with them.
type BurstPair struct {
	None Row `json:"none"`
	Warm Row `json:"warm"`
}

// BurstRank is the wait of the session that was answered at this rank, in ms.
type BurstRank struct {
	Rank  int     `json:"rank"` // from 1, the first to be answered
	None  float64 `json:"none"`
	Warm  float64 `json:"warm"`
	Ratio float64 `json:"ratio"` // Warm ÷ None
}

// Bursts lists the kinds of bursts.
func Bursts() []string { return []string{"cold", "warm", "bridge", "containerd"} }

// bursts requests many sessions at once, in turns from an agent without warm containers, from
// one that has them for a part of the sessions, from one whose sessions get networks of
// Docker's, and from one on containerd without Docker. All else is equal.
func (x *bootBench) bursts(ctx context.Context, r *Result, d *BootDetails) error {
	if x.o.Burst == 0 {
		return nil
	}
	kinds := slices.DeleteFunc(Bursts(), func(kind string) bool { return len(x.o.Bursts) > 0 && !slices.Contains(x.o.Bursts, kind) })
	of := map[string]bootMode{
		"cold":       {name: "burst", row: fmt.Sprintf("burst of %d, none warm", x.o.Burst), template: "network: pooled", pooled: true},
		"warm":       {name: "burst-warm", row: fmt.Sprintf("burst of %d, %d warm", x.o.Burst, x.o.Warm), template: fmt.Sprintf("network: pooled, warm: %d", x.o.Warm), warm: true, pooled: true},
		"bridge":     {name: "burst-bridge", row: fmt.Sprintf("burst of %d, networks of Docker's", x.o.Burst), template: "network: bridge"},
		"containerd": {name: "burst-ctr", row: fmt.Sprintf("burst of %d on containerd", x.o.Burst), template: "network: pooled", containerd: true},
	}
	var modes []bootMode
	for _, kind := range kinds {
		modes = append(modes, of[kind])
	}
	took := make([][][]float64, len(modes)) // by mode and round, sorted
	cpu := make([][]float64, len(modes))    // by mode and round
	err := x.with(ctx, modes, func(agents []*bootAgent) error {
		for round := range x.o.BurstRounds {
			for n := range agents {
				k := (round + n) % len(agents)
				fmt.Fprintf(x.o.Progress, "%s, %d of %d\n", modes[k].row, round+1, x.o.BurstRounds)
				if err := settleAll(ctx, x, agents, fillLimit(x.o.Burst)); err != nil {
					return err
				}
				one, used, err := x.burst(ctx, agents[k], round)
				if err != nil {
					return err
				}
				took[k], cpu[k] = append(took[k], one), append(cpu[k], used)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for k, m := range modes {
		r.Rows = append(r.Rows, NewRow(m.row, "ms", slices.Concat(took[k]...)))
	}
	d.Burst = &BurstDetails{Sessions: x.o.Burst, Warm: x.o.Warm}
	if cold, warm := slices.Index(kinds, "cold"), slices.Index(kinds, "warm"); cold >= 0 && warm >= 0 {
		d.Burst.compare(took[cold], took[warm])
		r.Notes = append(r.Notes, d.Burst.notes()...)
	}
	for k, m := range modes {
		row := NewRow(m.row+": CPU time of a boot", "ms", cpu[k])
		d.Burst.CPU = append(d.Burst.CPU, row)
		r.Notes = append(r.Notes, fmt.Sprintf("%s: %s ms of CPU time for each boot (%s to %s)", m.row, figure(row.P50), figure(row.Min), figure(row.Max)))
	}
	return nil
}

// burst requests many sessions at once and returns their waits in ms, sorted, and the CPU
// time of a boot in ms. Then it ends the sessions.
func (x *bootBench) burst(ctx context.Context, a *bootAgent, round int) (_ []float64, cpu float64, err error) {
	took := make([]float64, x.o.Burst)
	errs := make([]error, x.o.Burst)
	begin := make(chan struct{})
	var all sync.WaitGroup
	for i := range took {
		all.Go(func() {
			<-begin
			t, err := x.sessionBoot(ctx, a, round*x.o.Burst+i)
			took[i], errs[i] = millis(t), err
		})
	}
	before, err := labCPU()
	if err != nil {
		return nil, 0, err
	}
	close(begin)
	all.Wait()
	after, err := labCPU()
	for _, one := range append(errs, err) {
		if one != nil {
			return nil, 0, fmt.Errorf("a burst of %d sessions: %w", x.o.Burst, one)
		}
	}
	list, err := a.sessions(ctx, x.client)
	if err != nil {
		return nil, 0, err
	}
	slices.Sort(took)
	return took, millis(after-before) / float64(x.o.Burst), x.removeAll(ctx, a, list)
}

// compare compares rounds of sorted waits, without and with warm containers. All rounds have the
// same length.
func (b *BurstDetails) compare(none, warm [][]float64) {
	for i := range none {
		b.Rounds = append(b.Rounds, BurstPair{None: NewRow("none warm", "ms", none[i]), Warm: NewRow("some warm", "ms", warm[i])})
	}
	at := func(rounds [][]float64, rank int) float64 {
		var of []float64
		for _, r := range rounds {
			of = append(of, r[rank])
		}
		return NewRow("", "", of).P50
	}
	for rank := range b.Sessions {
		one := BurstRank{Rank: rank + 1, None: at(none, rank), Warm: at(warm, rank)}
		if one.Ratio = one.Warm / one.None; one.Ratio > b.Worst.Ratio {
			b.Worst = one
		}
	}
}

// notes returns the details as sentences.
func (b *BurstDetails) notes() []string {
	line := func(name string, of func(Row) float64) string {
		none, warm := spread(b.Rounds, func(p BurstPair) float64 { return of(p.None) }), spread(b.Rounds, func(p BurstPair) float64 { return of(p.Warm) })
		return fmt.Sprintf("%s %s ms with none warm (rounds: %s to %s), %s with %d warm (%s to %s)",
			name, figure(none.P50), figure(none.Min), figure(none.Max), figure(warm.P50), b.Warm, figure(warm.Min), figure(warm.Max))
	}
	note := fmt.Sprintf("burst of %d: ", b.Sessions)
	return []string{
		note + line("p50", func(r Row) float64 { return r.P50 }),
		note + line("p99", func(r Row) float64 { return r.P99 }),
		note + line("longest", func(r Row) float64 { return r.Max }),
		note + fmt.Sprintf("by rank, no session waited more than %.2f times as long as with none warm (rank %d: %s and %s ms; medians of %d rounds)",
			b.Worst.Ratio, b.Worst.Rank, figure(b.Worst.Warm), figure(b.Worst.None), len(b.Rounds)),
	}
}

func spread(rounds []BurstPair, of func(BurstPair) float64) Row {
	var all []float64
	for _, p := range rounds {
		all = append(all, of(p))
	}
	return NewRow("", "", all)
}

// claimFill is the time limit for making one warm container, or for removing one of a
// session, on a busy machine.
const claimFill = 5 * time.Second
