package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"holdfast/internal/hosts/doctor"
)

// ExamTable is the result of a blind examination.
type ExamTable struct {
	Seed    uint64      `json:"seed"`
	HeldOut bool        `json:"held_out"`
	Load    float64     `json:"load"` // the highest 1-minute load average before a fault
	Rows    []ExamRow   `json:"rows"`
	Healthy ExamHealthy `json:"healthy"`
}

// ExamHealthy counts doctor runs on healthy hosts.
type ExamHealthy struct {
	Looks   int            `json:"looks"`
	Wrong   int            `json:"wrong"`   // looks with a finding that is worse than a notice
	Notices int            `json:"notices"` // notices in all looks
	ByRule  map[string]int `json:"by_rule"`
	False   []string       `json:"false"` // the first of those findings
	// Peers counts what each peer said meanwhile.
	Peers map[string]*PeerHealthy `json:"peers,omitempty"`
}

func (h *ExamHealthy) add(wrong []doctor.Finding, host string) {
	if len(wrong) > 0 {
		h.Wrong++
	}
	for _, f := range wrong {
		h.ByRule[f.Rule]++
		if len(h.False) < maxEvidence {
			h.False = append(h.False, host+": "+tell(f))
		}
	}
}

// sum returns the share of faults that were named completely, and the number of all errors.
func (t *ExamTable) sum() (score float64, failed int) {
	right, ran := 0, 0
	for _, r := range t.Rows {
		if r.Skipped != "" {
			continue
		}
		ran++
		if r.right() {
			right++
		}
	}
	if ran > 0 {
		score = float64(right) / float64(ran)
	}
	return score, ran - right + t.Healthy.Wrong
}

// WriteTable prints the table as text.
func (t *ExamTable) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "FAULT\tCULPRIT\tCAUSE\tCONTAINER\tCAUSE NAMED\tAFTER\tPEERS\tACCUSED WRONGLY")
	rows := slices.Clone(t.Rows)
	slices.SortFunc(rows, func(a, b ExamRow) int { return strings.Compare(a.Fault, b.Fault) })
	for _, r := range rows {
		if r.Skipped != "" {
			fmt.Fprintf(tw, "%s\t-\t-\tdid not run\t%s\t\t\t\n", r.Fault, oneLine(r.Skipped))
			continue
		}
		for _, v := range r.Verdicts {
			cause, after := v.Cause[0], "-"
			if !v.Known {
				cause += " (not a check)"
			}
			if v.Named {
				after = fmt.Sprintf("%.0f s", v.Seconds)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", r.Fault, v.Culprit, cause, yes(v.Container), yes(v.Named), after, r.peers(), len(r.Wrong))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	h := t.Healthy
	if _, err := fmt.Fprintf(w, "healthy: %d looks, %d with a false finding (%s), %d notices; load at most %.1f\n", h.Looks, h.Wrong, counts(h.ByRule), h.Notices, t.Load); err != nil {
		return err
	}
	return t.writePeers(w)
}

// writePeers writes one line for each peer.
func (t *ExamTable) writePeers(w io.Writer) error {
	for _, name := range slices.Sorted(maps.Keys(t.Healthy.Peers)) {
		ran, alarmed, named := 0, 0, 0
		for _, r := range t.Rows {
			v, ok := r.Peers[name]
			if !ok {
				continue
			}
			ran++
			if v.Alarms > 0 {
				alarmed++
			}
			if v.Container {
				named++
			}
		}
		h := t.Healthy.Peers[name]
		if _, err := fmt.Fprintf(w, "%s: an alarm during %d of %d faults, the culprit in %d; healthy: %d looks with an alarm, %d alarms\n", name, alarmed, ran, named, h.Wrong, h.Alarms); err != nil {
			return err
		}
	}
	return nil
}

func (r ExamRow) peers() string {
	var s []string
	for name, p := range r.Peers {
		said := fmt.Sprintf("%s %d alarms", name, p.Alarms)
		if p.Container {
			said += ", container"
		}
		s = append(s, said)
	}
	slices.Sort(s)
	return orDash(strings.Join(s, "; "))
}

func (r ExamRow) line() string {
	s := r.Fault + " beside " + strings.Join(r.Beside, ", ") + ":"
	if r.Skipped != "" {
		return s + " did not run: " + oneLine(r.Skipped)
	}
	for _, v := range r.Verdicts {
		s += fmt.Sprintf(" %s: container %s, cause %s after %.0f s;", v.Culprit, yes(v.Container), yes(v.Named), v.Seconds)
	}
	said := r.Said
	if !r.right() {
		said = append(slices.Clone(said), r.Unseen...)
	}
	for _, x := range said {
		s += "\n    " + x
	}
	for _, name := range slices.Sorted(maps.Keys(r.Peers)) {
		for _, x := range r.Peers[name].Said {
			s += "\n    " + name + ": " + x
		}
	}
	return s
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
