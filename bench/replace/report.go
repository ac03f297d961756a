package replace

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"holdfast"
	"holdfast/bench"
)

// MaxWait is the longest wait that a client of a group may have.
const MaxWait = time.Second

// Details are the details of this bench's result.
type Details struct {
	SizeMiB   int         `json:"size_mib"`
	Ways      []Way       `json:"ways"`
	Phases    []bench.Row `json:"phases"` // of the group's replacements with a new replica first
	Different []string    `json:"different,omitempty"`
}

func result(o Options, machine bench.Machine, ways []Way, different []string) bench.Result {
	first, single := ways[0], ways[len(ways)-1]
	r := bench.Result{
		Name: "replace", Machine: machine, Failed: first.Errors + len(different), Notes: slices.Clone(different),
		Scale: "longest wait with a single database ÷ that with the group",
	}
	if first.LongestMS > millis(MaxWait) {
		r.Failed++
		r.Notes = append(r.Notes, fmt.Sprintf("a client of the group waited for %.0f ms", first.LongestMS))
	}
	if first.LongestMS > 0 {
		r.Score = single.LongestMS / first.LongestMS
	}
	for _, w := range ways {
		for _, row := range w.Rows {
			row.Name = w.Name + ": " + row.Name
			r.Rows = append(r.Rows, row)
		}
	}
	r.Details = Details{SizeMiB: o.Size, Ways: ways, Phases: phases(first.Replacements), Different: different}
	return r
}

// phases returns the distribution of each phase.
func phases(all []Replacement) (rows []bench.Row) {
	add := func(name string, of func(Replacement) holdfast.Millis) {
		var ms []float64
		for _, r := range all {
			if r.Replica != nil {
				ms = append(ms, millis(time.Duration(of(r))))
			}
		}
		rows = append(rows, bench.NewRow(name, "ms", ms))
	}
	add("place", func(r Replacement) holdfast.Millis { return r.Boot.Queue + r.Boot.Claim })
	add("image", func(r Replacement) holdfast.Millis { return r.Boot.Pull })
	add("disk restored", func(r Replacement) holdfast.Millis { return r.Boot.Disk })
	add("init", func(r Replacement) holdfast.Millis { return r.Boot.Init })
	add("create, start, ready", func(r Replacement) holdfast.Millis { return r.Boot.Create + r.Boot.Start + r.Boot.Ready })
	add("caught up", func(r Replacement) holdfast.Millis { return r.Replica.CaughtUp })
	add("in rotation", func(r Replacement) holdfast.Millis { return r.Replica.Rotation })
	add("drained", func(r Replacement) holdfast.Millis { return r.Replica.Drained })
	add("stopped", func(r Replacement) holdfast.Millis { return r.Replica.Stopped })
	add("total", func(r Replacement) holdfast.Millis { return r.Total })
	return rows
}

// WriteTable implements bench.Table.
func (d Details) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d MiB of data\treplacements\tqueries\terrors\tlongest wait\n", d.SizeMiB)
	for _, way := range d.Ways {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.0f ms\n", way.Name, len(way.Replacements), way.Queries, way.Errors, way.LongestMS)
	}
	fmt.Fprint(t, "\n\tn\tp50\tp99\tmost\n")
	for _, way := range d.Ways {
		for _, r := range way.Rows {
			fmt.Fprintf(t, "%s: %s\t%d\t%.1f ms\t%.1f ms\t%.0f ms\n", way.Name, r.Name, r.N, r.P50, r.P99, r.Max)
		}
	}
	fmt.Fprint(t, "\nphase of a new replica first\tn\tp50\tp99\tmost\n")
	for _, r := range d.Phases {
		fmt.Fprintf(t, "%s\t%d\t%.0f ms\t%.0f ms\t%.0f ms\n", r.Name, r.N, r.P50, r.P99, r.Max)
	}
	return t.Flush()
}

// The table is between these lines of the page.
const (
	pageBegin = "<!-- replace: holdfast bench replace --write docs/replica-groups.md writes it -->\n"
	pageEnd   = "<!-- end of the table of replacements -->\n"
)

// WritePage replaces the result in a page by a result of Run.
func WritePage(path string, r bench.Result) error {
	d, _ := r.Details.(Details)
	var b bytes.Buffer
	fmt.Fprint(&b, "| way | replacements | queries | errors | longest wait |\n|---|---|---|---|---|\n")
	for _, w := range d.Ways {
		fmt.Fprintf(&b, "| **%s** | %d | %d | %d | %.0f ms |\n", w.Name, len(w.Replacements), w.Queries, w.Errors, w.LongestMS)
	}
	fmt.Fprint(&b, "\n| ms | n | p50 | p99 | most |\n|---|---|---|---|---|\n")
	for _, row := range slices.Concat(r.Rows, d.Phases) {
		fmt.Fprintf(&b, "| %s | %d | %.1f | %.1f | %.0f |\n", row.Name, row.N, row.P50, row.P99, row.Max)
	}
	m := r.Machine
	fmt.Fprintf(&b, "\n%d MiB of data, on %d CPUs (%s), %.0f GiB, Linux %s, %s. Failed: %d.\n", d.SizeMiB, m.CPUs, m.Model, float64(m.Memory)/(1<<30), m.Kernel, m.Engine, r.Failed)
	return bench.WritePage(path, pageBegin, pageEnd, b.Bytes())
}
