package replace

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/bench"
	"holdfast/internal/platform/tasks"
)

// dialer dials the address of each connect.
func dialer(address func(context.Context) (string, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		to, err := address(ctx)
		if err != nil {
			return nil, err
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", to)
	}
}

// Way is what clients saw of one way to replace.
type Way struct {
	Name         string         `json:"name"`
	Replacements []Replacement  `json:"replacements"`
	Queries      int            `json:"queries"`
	Errors       int            `json:"errors"`
	ErrorTexts   map[string]int `json:"error_texts"`
	LongestMS    float64        `json:"longest_ms"` // of a query, from the first try until it succeeded
	Rows         []bench.Row    `json:"rows"`
}

// Replacement is one replacement, and the probe queries that began during it.
type Replacement struct {
	holdfast.Replacement
	Probes bench.Row `json:"probes"`
}

// way replaces until there were n replacements, while clients read.
func (x *experiment) way(ctx context.Context, n int, name string, address func(context.Context) (string, error), args ...string) (w Way, err error) {
	x.say("%s", name)
	t, err := x.read(address)
	if err != nil {
		return w, err
	}
	defer t.stop()
	began := time.Now()
	if err := tasks.Sleep(ctx, x.o.Rest); err != nil {
		return w, err
	}
	w = Way{Name: name}
	first := time.Now()
	for len(w.Replacements) < n {
		r, err := x.replace(ctx, args...)
		if err != nil {
			return w, err
		}
		for _, row := range r.Rows {
			w.Replacements = append(w.Replacements, Replacement{Replacement: row})
			x.say("%s: %d of %d replaced, in %v", name, len(w.Replacements), n, row.Total)
		}
	}
	last := time.Now()
	if err := tasks.Sleep(ctx, x.o.Rest); err != nil {
		return w, err
	}
	t.stop()
	w.see(t, began, first, last)
	return w, nil
}

// see adds what the clients saw. began is the beginning of the queries, and first and last
// are the beginning and the end of the replacements.
func (w *Way) see(t *traffic, began, first, last time.Time) {
	w.ErrorTexts = t.errors
	for _, kind := range []string{fresh, kept} {
		w.Rows = append(w.Rows, w.count(kind, t.kinds[kind]))
	}
	probes := t.kinds[probe]
	w.count(probe, probes)
	between := func(from, to time.Time) (ms []float64) {
		for _, a := range probes {
			if !a.at.Before(from) && a.at.Before(to) {
				ms = append(ms, millis(a.took))
			}
		}
		return ms
	}
	w.Rows = append(w.Rows,
		bench.NewRow("probe before", "ms", between(began, first)),
		bench.NewRow("probe during the replacements", "ms", between(first, last)),
		bench.NewRow("probe after", "ms", between(last, last.Add(time.Hour))))
	for i := range w.Replacements {
		r := &w.Replacements[i]
		r.Probes = bench.NewRow(probe, "ms", between(r.Started, r.Started.Add(time.Duration(r.Total))))
	}
}

func (w *Way) count(kind string, all []asked) bench.Row {
	var ms []float64
	for _, a := range all {
		ms = append(ms, millis(a.took))
		w.Errors += a.errors
	}
	w.Queries += len(all)
	if len(ms) > 0 {
		w.LongestMS = max(w.LongestMS, slices.Max(ms))
	}
	return bench.NewRow(kind, "ms", ms)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// run measures the ways, and compares the replicas with the primary.
func (x *experiment) run(ctx context.Context) (bench.Result, error) {
	machine, err := x.machine(ctx)
	if err != nil {
		return bench.Result{}, err
	}
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	writer, writing := errgroup.WithContext(writing)
	writer.Go(func() error { return x.write(writing) })
	var ways []Way
	for _, one := range []struct {
		n       int
		name    string
		address func(context.Context) (string, error)
		args    []string
	}{
		{x.o.N, "group, a new replica first", x.group, []string{"db", "--timeout", "30m"}},
		{x.o.Beside, "group, --max-unavailable 1", x.group, []string{"db", "--timeout", "30m", "--max-unavailable", "1"}},
		{x.o.Beside, "single database, stop then start", x.at("alone"), []string{"alone", "--timeout", "30m"}},
	} {
		w, err := x.way(writing, one.n, one.name, one.address, one.args...)
		if err != nil {
			stopWriting()
			return bench.Result{}, fmt.Errorf("%s: %w", one.name, cmpErr(writer.Wait(), err))
		}
		ways = append(ways, w)
	}
	stopWriting()
	if err := writer.Wait(); err != nil {
		return bench.Result{}, err
	}
	different, err := x.compare(ctx)
	return result(x.o, machine, ways, different), err
}

// cmpErr prefers the error of the writer, whose end ends the rest.
func cmpErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// compare counts the replicas that differ from the primary.
func (x *experiment) compare(ctx context.Context) (different []string, err error) {
	want, err := x.sum(ctx, "primary")
	if err != nil {
		return nil, err
	}
	x.say("the primary has %s", want)
	all, err := x.api.Groups(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all[0].Replicas {
		var got string
		deadline := time.Now().Add(time.Minute)
		for got != want && time.Now().Before(deadline) {
			if got, err = x.sum(ctx, r.Key); err != nil {
				return nil, err
			}
			if err := tasks.Sleep(ctx, 100*time.Millisecond); err != nil {
				return nil, err
			}
		}
		if got != want {
			different = append(different, fmt.Sprintf("replica %s has %s, the primary %s", r.Key, got, want))
		}
	}
	return different, nil
}
