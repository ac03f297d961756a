package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/spinup"
)

// exitNoJob is the exit code if a job could not be run, as of `docker run`.
const exitNoJob = 125

// runError makes err the reason why a job was not run to its end.
func runError(err error) error {
	code := exitNoJob
	var own coder
	switch {
	case errors.Is(err, context.Canceled):
		code = exitInterrupted
	case errors.As(err, &own): // an error in the configuration
		code = own.ExitCode()
	}
	return &exitError{err: err, code: code}
}

// jobOutcome is a job in the output. Its exit code is that of the command.
type jobOutcome struct {
	job.Result
	Error   string         `json:"error,omitempty"` // why it was not run to its end
	Spinups []judgedSpinup `json:"spinups"`
}

type judgedSpinup struct {
	job.Spinup
	Slow []spinup.Phase `json:"slow"` // slow phases by the rules
}

// showJob prints the result with --json, with the error if it is incomplete (failed may
// be nil). Otherwise it prints the table of phases on stderr, because stdout has the
// output of the steps.
func (a *app) showJob(res job.Result, failed error, nameOf func(run int, name string) string, rules spinup.Rules) error {
	if !a.ui.json {
		if len(res.Spinups) > 0 {
			fmt.Fprintln(a.ui.err)
			jobPhaseTable(a.ui.err, res.Spinups, nameOf, rules)
		}
		return nil
	}
	out := jobOutcome{Result: res, Spinups: []judgedSpinup{}}
	if failed != nil {
		out.Error = messageOf(failed)
	}
	for _, s := range res.Spinups {
		out.Spinups = append(out.Spinups, judgedSpinup{s, slowPhases(s.Record, rules)})
	}
	return a.ui.result(out, nil)
}

// jobPhaseTable prints the time of each phase of each container, which nameOf names.
func jobPhaseTable(w io.Writer, spinups []job.Spinup, nameOf func(run int, name string) string, rules spinup.Rules) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "CONTAINER\tIMAGE")
	for _, p := range spinup.Phases() {
		fmt.Fprint(t, "\t"+strings.ToUpper(string(p)))
	}
	fmt.Fprintln(t, "\tTOTAL")
	var slow []string
	for _, s := range spinups {
		r, name := s.Record, nameOf(s.Run, s.Alias)
		fmt.Fprintf(t, "%s\t%s", dash(name), dash(r.Image))
		verdicts := map[spinup.Phase]spinup.Verdict{}
		for _, v := range rules.Judge(r) {
			verdicts[v.Phase] = v
		}
		for _, p := range spinup.Phases() {
			fmt.Fprint(t, "\t"+jobPhaseCell(r, p))
			if v := verdicts[p]; v.Slow {
				fmt.Fprint(t, " !")
				slow = append(slow, fmt.Sprintf("%s: %s %s", name, p, limitText(v)))
			}
		}
		fmt.Fprintf(t, "\t%s\n", endCell(r))
	}
	t.Flush()
	for _, line := range slow {
		fmt.Fprintf(w, "! slow: %s\n", clean(line))
	}
}

// jobPhaseCell formats the time of a phase, or why there is none.
func jobPhaseCell(r spinup.Record, p spinup.Phase) string {
	if p == spinup.Download && r.Pull != nil && r.Pull.Cached {
		return "cached"
	}
	took, ok := r.Times[p]
	switch {
	case !ok:
		return "-"
	case r.Failed == p:
		return "failed"
	case p == spinup.Download && r.Pull != nil && r.Pull.Joined:
		return took.String() + " joined"
	}
	return took.String()
}

func endCell(r spinup.Record) string {
	if r.Outcome != spinup.OK {
		return string(r.Outcome)
	}
	return r.Took.String()
}

// limitText describes a slow phase and its rule.
func limitText(v spinup.Verdict) string {
	if v.Phase == spinup.Download || v.Phase == spinup.Extract {
		return fmt.Sprintf("with %.1f MiB/s, the rule is %g", v.Value, v.Limit)
	}
	return fmt.Sprintf("took %.1fs, the rule is %gs", v.Value, v.Limit)
}
