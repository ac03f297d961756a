// Package bench has the experiments of the program holdfast-bench, which
// `holdfast bench` runs. Each experiment measures Holdfast and a peer in turns, in one
// run on one machine, with an engine, images and containers of its own.
package bench

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// Result is the result of one experiment. Its JSON form is the output of
// `holdfast bench NAME --json`.
type Result struct {
	Name    string  `json:"name"`
	Machine Machine `json:"machine"`
	Rows    []Row   `json:"rows"`
	Failed  int     `json:"failed"` // operations with a wrong result
	Score   float64 `json:"score"`  // Holdfast's figure against the peer's; over 1 is better than the peer
	// Scale explains the score of an experiment without a peer.
	Scale string   `json:"scale,omitempty"`
	Notes []string `json:"notes,omitempty"`
	// Details has the results that only this experiment has. If it is a Table, the
	// table is printed instead of the rows.
	Details any `json:"details,omitempty"`
}

// Table is an experiment's own text format.
type Table interface{ WriteTable(io.Writer) error }

// Machine describes the host of an experiment.
type Machine struct {
	CPUs   int    `json:"cpus"`
	Model  string `json:"model"`
	Memory int64  `json:"memory"` // bytes
	Kernel string `json:"kernel"`
	Engine string `json:"engine,omitempty"` // docker 20.10.24, overlay2, cgroup 1
}

// Row is the distribution of one figure.
type Row struct {
	Name string  `json:"name"`
	Unit string  `json:"unit"` // ms, msg/s
	N    int     `json:"n"`    // samples
	Min  float64 `json:"min"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// NewRow computes a row of samples. Quantiles are by nearest rank. Without samples the
// row has zeros.
func NewRow(name, unit string, samples []float64) Row {
	r := Row{Name: name, Unit: unit, N: len(samples)}
	if len(samples) == 0 {
		return r
	}
	s := slices.Sorted(slices.Values(samples))
	rank := func(q float64) float64 { return s[max(0, int(math.Ceil(q*float64(len(s))))-1)] }
	r.Min, r.P50, r.P99, r.Max = s[0], rank(0.5), rank(0.99), s[len(s)-1]
	return r
}

// Failures is the number of operations that failed.
func (r Result) Failures() int { return r.Failed }

// WriteText prints the result as text.
func (r Result) WriteText(w io.Writer) error {
	m := r.Machine
	fmt.Fprintf(w, "%s on %d CPUs (%s), %.1f GiB, Linux %s", r.Name, m.CPUs, m.Model, float64(m.Memory)/(1<<30), m.Kernel)
	if m.Engine != "" {
		fmt.Fprintf(w, ", %s", m.Engine)
	}
	fmt.Fprint(w, "\n\n")
	if err := r.writeTable(w); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nscore %.2f (%s), failed %d\n", r.Score, cmp.Or(r.Scale, "over 1 is better than the peer"), r.Failed)
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	return nil
}

// writeTable prints the details' own table, or the rows.
func (r Result) writeTable(w io.Writer) error {
	if own, ok := r.Details.(Table); ok {
		return own.WriteTable(w)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tn\tmin\tp50\tp99\tmax\tunit\t")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t\n", row.Name, row.N,
			figure(row.Min), figure(row.P50), figure(row.P99), figure(row.Max), row.Unit)
	}
	return t.Flush()
}

// figure formats a number with three significant digits and without an exponent.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
