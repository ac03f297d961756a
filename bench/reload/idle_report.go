package reload

import (
	"fmt"
	"io"
	"math"
	"slices"

	"holdfast/bench"
)

// IdleRun is the cost of one backend without reloads.
type IdleRun struct {
	Mode    Mode   `json:"mode"`
	Skipped string `json:"skipped,omitempty"` // reason if the run was skipped; the rest is zero then

	Pairs    []Pair `json:"pairs"`
	Requests int    `json:"requests"`
	Failed   int    `json:"failed"`
	// Ratio is the median of the pairs' with ÷ without; From and To are the
	// quartiles.
	Ratio float64 `json:"ratio"`
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	// CPU is the median of the CPU time of a request, of clients and servers
	// together, with ÷ without. Other work on the machine hardly changes it.
	CPU float64 `json:"cpu_ratio"`
	// Alone and Installed are the medians of the time until a protect held connections,
	// in milliseconds: without and with the port installed.
	Alone     float64 `json:"begins_alone"`
	Installed float64 `json:"begins_installed"`

	alone, installed []float64
}

// Pair is two loads with and two without, in turns.
type Pair struct {
	// Requests per second.
	Without float64 `json:"without"`
	With    float64 `json:"with"`
	// Microseconds of CPU time for each request.
	CPUWithout float64 `json:"cpu_without"`
	CPUWith    float64 `json:"cpu_with"`
}

// IdleDetails are Result.Details of the experiment without reloads.
type IdleDetails struct {
	HAProxy     string     `json:"haproxy"`
	Connections int        `json:"connections"` // at once, in a closed loop
	Seconds     float64    `json:"seconds"`     // of each load
	Runs        []*IdleRun `json:"runs"`
}

// sum fills in the figures.
func (r *IdleRun) sum() {
	var ratios, cpu []float64
	for _, p := range r.Pairs {
		ratios, cpu = append(ratios, p.With/p.Without), append(cpu, p.CPUWith/p.CPUWithout)
	}
	r.CPU = quantile(cpu, 0.5)
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
		without, with := r.rates()
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
	return writeRuns(w, "pairs\trequests\tfailed\twithout/s\tinstalled/s\tratio\tquartiles\tCPU\tholds after\tinstalled ms", d.Runs)
}

// Name is the backend's.
func (r *IdleRun) Name() string { return string(r.Mode) }

func (r *IdleRun) skipped() string { return r.Skipped }

func (r *IdleRun) cells() string {
	without, with := r.rates()
	return fmt.Sprintf("%d\t%d\t%d\t%.0f\t%.0f\t%.3f\t%.3f–%.3f\t%.3f\t%.1f\t%.1f", len(r.Pairs), r.Requests, r.Failed,
		quantile(without, 0.5), quantile(with, 0.5), r.Ratio, r.From, r.To, r.CPU, r.Alone, r.Installed)
}

// rates are the requests per second of each pair.
func (r *IdleRun) rates() (without, with []float64) {
	for _, p := range r.Pairs {
		without, with = append(without, p.Without), append(with, p.With)
	}
	return without, with
}
