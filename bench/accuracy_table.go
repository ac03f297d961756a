package bench

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// AccuracyTable is the doctor's verdict on each host.
type AccuracyTable struct {
	Seconds float64 `json:"seconds"` // duration of each doctor run
	Longest float64 `json:"longest"` // longest doctor run, seconds
	Peak    float64 `json:"peak"`    // highest memory use of a doctor run, MiB
	// Load is the highest 1-minute load average (proc_loadavg(5)) at the beginning
	// of a round.
	Load    float64       `json:"load"`
	Rules   []string      `json:"rules"`
	Rows    []AccuracyRow `json:"rows"`
	Machine Machine       `json:"-"`

	markdown bool
}

// AccuracyRow is one host over all its runs. The maps count runs by rule.
type AccuracyRow struct {
	Name      string         `json:"name"`
	Rule      string         `json:"rule,omitempty"` // the expected finding; "" on a healthy host
	Container bool           `json:"container"`      // the drill ran in a container, otherwise in a control group only
	Runs      int            `json:"runs"`
	Right     int            `json:"right"`  // runs that named the right container or group, or found nothing on a healthy host
	Missed    map[string]int `json:"missed"` // by reason
	// Outdone is the number of repeated runs: the doctor named another workload on
	// this machine that did the same.
	Outdone int `json:"outdone"`
	// Own counts other findings about the drill's own container or group.
	Own map[string]int `json:"own"`
	// Others counts findings about another group of the bench, or without a subject.
	Others map[string]int `json:"others"`
	// Machine counts findings that are true of the machine and not caused by the bench.
	Machine  map[string]int `json:"machine"`
	Unseen   map[string]int `json:"not_judged"`
	Evidence []string       `json:"evidence"` // of the findings in Others and Machine
}

func newAccuracyTable(rows []accuracyRow, o AccuracyOptions) *AccuracyTable {
	t := &AccuracyTable{Seconds: o.For.Seconds(), Rules: ruleNames(), markdown: o.Markdown}
	for _, r := range rows {
		t.Rows = append(t.Rows, AccuracyRow{Name: r.name, Rule: r.drill.Rule,
			Missed: map[string]int{}, Own: map[string]int{}, Others: map[string]int{}, Machine: map[string]int{}, Unseen: map[string]int{}, Evidence: []string{}})
	}
	return t
}

// maxEvidence bounds the evidence that a row keeps of unexpected findings.
const maxEvidence = 20

func (r *AccuracyRow) add(o outcome) {
	r.Runs++
	switch {
	case o.healthy && len(o.others) == 0, o.right:
		r.Right++
	case !o.healthy:
		r.Missed[o.about]++
	}
	for to, rules := range map[*map[string]int][]string{&r.Own: o.own, &r.Others: o.others, &r.Machine: o.machine, &r.Unseen: o.unseen} {
		slices.Sort(rules)
		for _, name := range slices.Compact(rules) { // runs are counted, not findings
			(*to)[name]++
		}
	}
	for _, e := range o.evidence {
		if len(r.Evidence) < maxEvidence {
			r.Evidence = append(r.Evidence, e)
		}
	}
}

// sum returns the share of the drills' runs that were named correctly, and the number
// of wrong runs: a drill that was not named, a finding on a healthy host, or a finding
// about an innocent container.
func (t *AccuracyTable) sum() (score float64, failed int) {
	right, runs := 0, 0
	for _, r := range t.Rows {
		if r.Rule == "" {
			failed += r.Runs - r.Right
			continue
		}
		right, runs = right+r.Right, runs+r.Runs
		failed += r.Runs - r.Right
		for rule, n := range r.Others {
			if rule != r.Rule { // otherwise it counts as missed
				failed += n
			}
		}
	}
	if runs > 0 {
		score = float64(right) / float64(runs)
	}
	return score, failed
}

func (t *AccuracyTable) notes() []string {
	notes := []string{fmt.Sprintf("each doctor run was to last %.0f s; the longest took %.1f s, the largest %.0f MiB", t.Seconds, t.Longest, t.Peak)}
	for _, r := range t.Rows {
		if r.Outdone > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d runs were repeated, because the doctor named other workloads on this machine that did the same", r.Name, r.Outdone))
		}
		for why, n := range r.Missed {
			notes = append(notes, fmt.Sprintf("%s was missed %d times: %s", r.Name, n, why))
		}
		for _, e := range r.Evidence {
			notes = append(notes, r.Name+": "+e)
		}
	}
	return notes
}

// WriteTable prints the table as text.
func (t *AccuracyTable) WriteTable(w io.Writer) error {
	if t.markdown {
		_, err := w.Write(t.Markdown())
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "HOST\tIN\tTO FIND\tRIGHT\tALSO OF IT\tWRONG\tOF THE MACHINE")
	for _, r := range t.Rows {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d of %d\t%s\t%s\t%s\n", r.Name, r.in(), orDash(r.Rule), r.Right, r.Runs, counts(r.Own), counts(r.Others), counts(r.Machine))
	}
	return tw.Flush()
}

func (r AccuracyRow) in() string {
	switch {
	case r.Rule == "":
		return "-"
	case r.Container:
		return "container"
	}
	return "group"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// counts formats a map of counts, sorted by name.
func counts(m map[string]int) string {
	var s []string
	for name, n := range m {
		s = append(s, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(s)
	return orDash(strings.Join(s, ", "))
}

// Markdown returns the table in the format of docs/doctor.md: one line per finding,
// one column per host.
func (t *AccuracyTable) Markdown() []byte {
	var b bytes.Buffer
	head, under := "| finding |", "|---|"
	for _, r := range t.Rows {
		head += " " + r.Name + " |"
		under += "---|"
	}
	fmt.Fprintf(&b, "%s\n%s\n", head, under)
	for _, rule := range t.Rules {
		fmt.Fprintf(&b, "| %s |", rule)
		for _, r := range t.Rows {
			fmt.Fprintf(&b, " %s |", r.cell(rule))
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprint(&b, "| **right** |")
	for _, r := range t.Rows {
		fmt.Fprintf(&b, " **%d/%d** |", r.Right, r.Runs)
	}
	m := t.Machine
	score, failed := t.sum()
	fmt.Fprintf(&b, "\n\nRuns of %.0f s (the longest took %.1f s, the largest %.0f MiB) at a load of up to %.0f on %d CPUs (%s), %.0f GiB, Linux %s, %s. Named correctly: %.3f; failed: %d.\n",
		t.Seconds, t.Longest, t.Peak, t.Load, m.CPUs, m.Model, float64(m.Memory)/(1<<30), m.Kernel, m.Engine, score, failed)
	return b.Bytes()
}

// cell returns how often a rule was reported on a host: **20** if it was expected, 3 if
// it was wrong, 3° if it was about the drill's container or group, 3* if it was true of
// the machine.
func (r AccuracyRow) cell(rule string) string {
	var s []string
	if rule == r.Rule {
		s = append(s, fmt.Sprintf("**%d**", r.Right))
	}
	for _, c := range []struct {
		n    int
		mark string
	}{{r.Own[rule], "°"}, {r.Others[rule], ""}, {r.Machine[rule], "\\*"}} {
		if c.n > 0 {
			s = append(s, fmt.Sprintf("%d%s", c.n, c.mark))
		}
	}
	return strings.Join(s, " ")
}

// The table is between these lines of the page.
const (
	accuracyBegin = "<!-- accuracy: holdfast bench accuracy --write docs/doctor.md writes it -->\n"
	accuracyEnd   = "<!-- end of the accuracy table -->\n"
)

// WritePage replaces the table in a page.
func (t *AccuracyTable) WritePage(path string) error {
	return WritePage(path, accuracyBegin, accuracyEnd, t.Markdown())
}
