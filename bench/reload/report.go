package reload

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"holdfast/bench"
)

// slack is the time that a protected request may take beyond the longest reload.
const slack = 50.0 // ms

// Run is one row of the table.
type Run struct {
	Mode    Mode   `json:"mode"`
	Change  Change `json:"change"`
	Skipped string `json:"skipped,omitempty"` // the reason if the run was skipped; the rest is zero then

	Requests      int            `json:"requests"`
	Failed        int            `json:"failed"`
	Reasons       map[string]int `json:"reasons,omitempty"`
	waits                        // of the answered, in milliseconds
	Changes       int            `json:"reloads"`
	LongestChange float64        `json:"longest_reload"` // ms
	Seconds       float64        `json:"seconds"`
	// Unfinished counts requests that the old server had not answered at the end of
	// protect's --drain. The restart ends them.
	Unfinished int `json:"unfinished,omitempty"`
	// Stills counts the times that a CPU stood still for at least 50 ms. LongestStill
	// is the longest of them in milliseconds. Awake is the longest wait, in
	// milliseconds, of a client that none of them delayed.
	Stills       int     `json:"stills"`
	LongestStill float64 `json:"longest_still"`
	Awake        float64 `json:"max_without_stills"`

	stills              []span
	least, leastChanges int
	changes             []span
	rec                 *recording
}

// Details is Result.Details of this bench.
type Details struct {
	HAProxy string  `json:"haproxy"`
	Rate    float64 `json:"rate"` // clients per second
	Runs    []*Run  `json:"runs"`
}

// Name is the run's name in tables.
func (r *Run) Name() string { return string(r.Change) + ", " + string(r.Mode) }

// sum fills in the results of a load.
func (r *Run) sum(rec *recording) {
	r.rec = rec
	r.Requests = len(rec.requests)
	r.Failed, r.Reasons = rec.failed()
	r.waits = rec.waits()
	r.Seconds = rec.took.Seconds()
	r.Changes = len(r.changes)
	for _, s := range r.changes {
		r.LongestChange = max(r.LongestChange, millis(s.took))
	}
	r.Stills = len(r.stills)
	for _, s := range r.stills {
		r.LongestStill = max(r.LongestStill, millis(s.took))
	}
	for _, q := range rec.requests {
		if ms := float64(q.wait) / 1000; q.why == fine && ms > r.Awake && !touched(q, r.stills) {
			r.Awake = ms
		}
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Reason counts the clients that failed for one reason.
type Reason struct {
	Reason string
	Count  int
}

// reasons returns the reasons, the most frequent first.
func (r *Run) reasons() []Reason {
	var out []Reason
	for _, why := range slices.Sorted(maps.Keys(r.Reasons)) {
		out = append(out, Reason{why, r.Reasons[why]})
	}
	slices.SortStableFunc(out, func(a, b Reason) int { return cmp.Compare(b.Count, a.Count) })
	return out
}

// bound is (the longest reload + slack) ÷ the longest request. It is 1 or more if no
// client waited longer than necessary.
func (r *Run) bound() float64 {
	if r.Max == 0 {
		return 0
	}
	return (r.LongestChange + slack) / r.Max
}

// result returns the bench's result. Score is the worst bound of Holdfast's reloads.
// Failed counts the clients without an answer in all runs of Holdfast.
func (d Details) result() bench.Result {
	res := bench.Result{Name: "reload", Machine: bench.ThisMachine("HAProxy " + d.HAProxy), Details: d}
	scored := false
	for _, r := range d.Runs {
		if r.Skipped != "" {
			continue
		}
		res.Rows = append(res.Rows, r.row())
		if r.Mode.ours() {
			res.Failed += r.Failed
			if r.Change == Reload && (!scored || r.bound() < res.Score) {
				res.Score, scored = r.bound(), true
			}
		}
		for _, why := range r.reasons() {
			res.Notes = append(res.Notes, fmt.Sprintf("%s: %d × %s", r.Name(), why.Count, why.Reason))
		}
		if r.Stills > 0 {
			res.Notes = append(res.Notes, fmt.Sprintf("%s: this machine stood still %d times, for up to %.0f ms; the longest wait outside of these times was %.1f ms, the longest reload took %.1f ms",
				r.Name(), r.Stills, r.LongestStill, r.Awake, r.LongestChange))
		}
		if r.Unfinished > 0 {
			res.Notes = append(res.Notes, fmt.Sprintf("%s: %d requests were not answered before the restart within --drain", r.Name(), r.Unfinished))
		}
	}
	return res
}

// row is the run as a bench.Row.
func (r *Run) row() bench.Row {
	var all []float64
	for _, q := range r.rec.requests {
		if q.why == fine {
			all = append(all, float64(q.wait)/1000)
		}
	}
	return bench.NewRow(r.Name(), "ms", all)
}

// WriteTable prints the table of runs; bench.Result uses it for its text.
func (d Details) WriteTable(w io.Writer) error {
	return writeRuns(w, "requests\tfailed\tp50\tp95\tp99\tmax ms\treloads\tlongest", d.Runs)
}

func (r *Run) skipped() string { return r.Skipped }

func (r *Run) cells() string {
	return fmt.Sprintf("%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t%.1f", r.Requests, r.Failed,
		r.P50, r.P95, r.P99, r.Max, r.Changes, r.LongestChange)
}

// reported is a run in a table.
type reported interface {
	Name() string
	skipped() string // the reason if the run was skipped
	cells() string   // the cells of its line, separated by tabs
}

// writeRuns prints a table of the runs, and the reasons of the skipped ones.
func writeRuns[R reported](w io.Writer, head string, runs []R) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\t%s\t\n", head)
	for _, r := range runs {
		if r.skipped() == "" {
			fmt.Fprintf(t, "%s\t%s\t\n", r.Name(), r.cells())
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range runs {
		if why := r.skipped(); why != "" {
			fmt.Fprintf(w, "%s: not here: %s\n", r.Name(), why)
		}
	}
	return nil
}
