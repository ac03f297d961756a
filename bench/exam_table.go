package bench

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"holdfast/internal/hosts/doctor"
)

// ExamTable is the result of a blind examination.
type ExamTable struct {
	Seed    uint64      `json:"seed"`
	HeldOut bool        `json:"held_out"`
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
	_, err := fmt.Fprintf(w, "healthy: %d looks, %d with a false finding (%s), %d notices\n", h.Looks, h.Wrong, counts(h.ByRule), h.Notices)
	return err
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
	for _, x := range r.Said {
		s += "\n    " + x
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

// peerLimit bounds the time of a peer's program.
const peerLimit = 10 * time.Second

// askPeers runs the peers' programs and returns the lines of each. One that fails says so.
func (x *examBench) askPeers(ctx context.Context) map[string][]string {
	said := make(map[string][]string)
	for _, p := range x.exam.Peers {
		name, program, _ := strings.Cut(p, "=")
		limited, cancel := context.WithTimeout(ctx, peerLimit)
		out, err := exec.CommandContext(limited, program).Output()
		cancel()
		if err != nil {
			out = fmt.Appendf(nil, "%s: %v", program, err)
		}
		said[name] = nil
		for line := range strings.Lines(string(out)) {
			said[name] = append(said[name], strings.TrimSpace(line))
		}
	}
	return said
}
