package reload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"slices"
	"text/tabwriter"
	"time"

	"holdfast/internal/bench"
)

// Sizes of the experiment without reloads.
const (
	defaultPairs = 30
	// idleSpan is how long each of a pair's four loads takes: short, since what
	// else a machine does changes from one second to the next.
	idleSpan   = 500 * time.Millisecond
	idleSettle = 100 * time.Millisecond
	// begins is how many holds are begun each way, at most one for each pair.
	begins = 10
	// worth is what an installed protection has to leave of the throughput.
	worth = 0.97
)

// IdleRun is what one backend costs while nothing reloads.
type IdleRun struct {
	Mode    Mode   `json:"mode"`
	Skipped string `json:"skipped,omitempty"` // why it was not made; the rest is zero then

	Pairs    []Pair `json:"pairs"`
	Requests int    `json:"requests"`
	Failed   int    `json:"failed"`
	// Ratio is the median of the pairs' with ÷ without; From and To are the
	// quartiles.
	Ratio float64 `json:"ratio"`
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	// Alone and Installed are the medians of what a protect took until it held,
	// in milliseconds, by itself and with the port installed.
	Alone     float64 `json:"begins_alone"`
	Installed float64 `json:"begins_installed"`

	alone, installed []float64
}

// Pair is two loads with and two without, in turns, in requests per second.
type Pair struct {
	Without float64 `json:"without"`
	With    float64 `json:"with"`
}

// IdleDetails are Result.Details of the experiment without reloads.
type IdleDetails struct {
	HAProxy     string     `json:"haproxy"`
	Connections int        `json:"connections"` // at once, in a closed loop
	Seconds     float64    `json:"seconds"`     // of each load
	Runs        []*IdleRun `json:"runs"`
}

// measureIdle measures requests per second with a port installed and without, in
// turns on the same servers, and how much sooner a hold begins.
func (x *experiment) measureIdle(ctx context.Context) (bench.Result, error) {
	d := IdleDetails{Connections: x.o.Connections, Seconds: idleSpan.Seconds()}
	var err error
	if d.HAProxy, err = x.stack.version(ctx); err != nil {
		return bench.Result{}, err
	}
	for _, m := range x.o.Modes {
		if !m.protects() {
			continue
		}
		r := &IdleRun{Mode: m}
		if err := x.idle(ctx, r); err != nil {
			return bench.Result{}, fmt.Errorf("%s: %w", m, err)
		}
		d.Runs = append(d.Runs, r)
	}
	return d.result(), nil
}

// protects reports whether a mode is a backend of protect.
func (m Mode) protects() bool { return slices.Contains([]Mode{Park, NFQueue, Migrate, Plug}, m) }

func (x *experiment) idle(ctx context.Context, r *IdleRun) error {
	p := &protected{x: x, backend: string(r.Mode), run: &Run{}}
	why, err := p.begin(ctx)
	if err != nil || why != "" {
		r.Skipped = why
		return err
	}
	if _, err := x.throughput(ctx, r); err != nil { // to warm up
		return err
	}
	for i := range x.o.Pairs {
		pair, err := x.pair(ctx, p, r, i%2 == 1)
		if err != nil {
			return err
		}
		r.Pairs = append(r.Pairs, pair)
	}
	if r.alone, err = p.beginsToHold(ctx); err != nil {
		return err
	}
	if err := p.install(ctx); err != nil {
		return err
	}
	r.installed, err = p.beginsToHold(ctx)
	if err = errors.Join(err, p.uninstall(ctx)); err != nil {
		return err
	}
	r.sum()
	fmt.Fprintf(x.o.Progress, "%s: %d pairs, with ÷ without %.3f (%.3f to %.3f), %d of %d failed; holds after %.1f ms, installed after %.1f ms\n",
		r.Mode, len(r.Pairs), r.Ratio, r.From, r.To, r.Failed, r.Requests, r.Alone, r.Installed)
	return nil
}

// pair measures both twice, the one with the installed port first and last, or in
// between: a machine that gets slower or faster meanwhile does not show.
func (x *experiment) pair(ctx context.Context, p *protected, r *IdleRun, outside bool) (pair Pair, err error) {
	installed := false
	defer func() {
		if installed {
			err = errors.Join(err, p.uninstall(ctx))
		}
	}()
	for _, want := range []bool{outside, !outside, !outside, outside} {
		if want != installed {
			change := p.uninstall
			if want {
				change = p.install
			}
			if err := change(ctx); err != nil {
				return pair, err
			}
			installed = want
			time.Sleep(idleSettle)
		}
		rate, err := x.throughput(ctx, r)
		if err != nil {
			return pair, err
		}
		if want {
			pair.With += rate / 2
		} else {
			pair.Without += rate / 2
		}
	}
	return pair, nil
}

// throughput has connections ask one after the other and returns how many were
// answered in a second.
func (x *experiment) throughput(ctx context.Context, r *IdleRun) (float64, error) {
	began := time.Now()
	rec, err := load{
		to: frontAddress, answer: pong, conns: x.o.Connections, limit: clientLimit,
		more: func(int) bool { return time.Since(began) < idleSpan },
	}.run(ctx)
	if err != nil {
		return 0, err
	}
	failed, _ := rec.failed()
	r.Requests += len(rec.requests)
	r.Failed += failed
	return float64(len(rec.requests)-failed) / rec.took.Seconds(), nil
}

// installing is a command line about installed ports. Nothing is written down: the
// host has its own record.
func (p *protected) installing(ctx context.Context, words ...string) error {
	argv := append(append([]string(nil), p.x.o.Protect...), words...)
	return p.x.stack.command(ctx, append(argv, "--record", "")...)
}

func (p *protected) install(ctx context.Context) error {
	return p.installing(ctx, "install", "--backend", p.backend, "--port", fmt.Sprint(frontAddress.Port()))
}

func (p *protected) uninstall(ctx context.Context) error { return p.installing(ctx, "uninstall") }

// beginsToHold is what protects took until they held, in milliseconds.
func (p *protected) beginsToHold(ctx context.Context) (took []float64, err error) {
	nothing, err := exec.LookPath("true")
	if err != nil {
		return nil, err
	}
	for range min(begins, p.x.o.Pairs) {
		out, err := p.x.stack.output(ctx, p.argv(Reload, "--", nothing)...)
		if err != nil {
			return nil, err
		}
		var report struct {
			Steps []struct {
				Name string
				Took time.Duration `json:"took_ns"`
			}
		}
		if err := json.Unmarshal(out, &report); err != nil {
			return nil, fmt.Errorf("what protect reports: %w", err)
		}
		var until time.Duration
		for _, s := range report.Steps {
			if s.Name == "prepare" || s.Name == "hold" {
				until += s.Took
			}
		}
		took = append(took, millis(until))
	}
	return took, nil
}

// sum fills in the figures.
func (r *IdleRun) sum() {
	var ratios []float64
	for _, p := range r.Pairs {
		ratios = append(ratios, p.With/p.Without)
	}
	r.From, r.Ratio, r.To = quantile(ratios, 0.25), quantile(ratios, 0.5), quantile(ratios, 0.75)
	r.Alone, r.Installed = quantile(r.alone, 0.5), quantile(r.installed, 0.5)
}

// quantile is by nearest rank, 0 of nothing.
func quantile(all []float64, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(all))
	return s[max(0, int(math.Ceil(q*float64(len(s))))-1)]
}

// result has the worst backend's ratio as its score.
func (d IdleDetails) result() bench.Result {
	res := bench.Result{Name: "reload --idle", Machine: bench.ThisMachine("HAProxy " + d.HAProxy), Details: d}
	scored := false
	for _, r := range d.Runs {
		if r.Skipped != "" {
			continue
		}
		var without, with []float64
		for _, p := range r.Pairs {
			without, with = append(without, p.Without), append(with, p.With)
		}
		res.Rows = append(res.Rows,
			bench.NewRow("without, "+string(r.Mode), "requests/s", without), bench.NewRow("installed, "+string(r.Mode), "requests/s", with),
			bench.NewRow("begins to hold alone, "+string(r.Mode), "ms", r.alone), bench.NewRow("begins to hold installed, "+string(r.Mode), "ms", r.installed))
		res.Failed += r.Failed
		if !scored || r.Ratio < res.Score {
			res.Score, scored = r.Ratio, true
		}
	}
	res.Notes = append(res.Notes, fmt.Sprintf("the score is requests per second with a port installed ÷ without, the median of pairs, of the worst backend; at least %.2f is wanted", worth))
	return res
}

// WriteTable prints the table of runs; bench.Result uses it for its text.
func (d IdleDetails) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tpairs\trequests\tfailed\twithout/s\tinstalled/s\tratio\tquartiles\tholds after\tinstalled ms\t")
	for _, r := range d.Runs {
		if r.Skipped != "" {
			continue
		}
		var without, with []float64
		for _, p := range r.Pairs {
			without, with = append(without, p.Without), append(with, p.With)
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.0f\t%.0f\t%.3f\t%.3f–%.3f\t%.1f\t%.1f\t\n", r.Mode, len(r.Pairs), r.Requests, r.Failed,
			quantile(without, 0.5), quantile(with, 0.5), r.Ratio, r.From, r.To, r.Alone, r.Installed)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range d.Runs {
		if r.Skipped != "" {
			fmt.Fprintf(w, "%s: not here: %s\n", r.Mode, r.Skipped)
		}
	}
	return nil
}
