package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/sessions/replace"
)

func (a *app) sessionReplace() *cobra.Command {
	var (
		q       api.ReplaceRequest
		node    string
		timeout time.Duration
		stop    bool
	)
	cmd := &cobra.Command{
		Use:   "replace KEY… | GROUP | --node NODE | --all",
		Short: "Give sessions new containers, a few at a time",
		Long: "Stop sessions and start them again, on the same or on another node, a few at a time, and print the time of each phase.\n" +
			"To move them off a node, cordon it first. TOTAL is the time from not ready to ready again, while clients wait.\n" +
			"After the first session that fails no more are begun, and likewise if this command is interrupted; running ones are finished.\n\n" +
			"GROUP is a template with replicas, or some of its replicas. For each of them a new replica starts, catches up and gets requests\n" +
			"before the old one ends, one by one. TOTAL is then the time for both, and no client waits. This goes on without this command,\n" +
			"and after the death of an agent: --stop ends it after the present replica.",
		Example: "  holdfast session replace alice bob\n" +
			"  holdfast session replace --node web-1 --parallel 4\n" +
			"  holdfast session replace --all --timeout 2m --json\n" +
			"  holdfast session replace db\n" +
			"  holdfast session replace db --max-unavailable 1\n" +
			"  holdfast session replace db --stop",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeKeys,
		RunE: func(cmd *cobra.Command, words []string) error {
			q.Node, q.Keys = holdfast.NodeID(node), nil
			for _, w := range words {
				key, err := holdfast.ParseSessionKey(w)
				if err != nil {
					return err
				}
				q.Keys = append(q.Keys, key)
			}
			if err := checkReplace(cmd, q, timeout); err != nil {
				return err
			}
			q.Timeout = holdfast.Millis(timeout)
			if stop {
				return a.stopReplacing(cmd, q)
			}
			return a.with(cmd, noLimit, func(ctx context.Context, c *client.Client) error { return a.replace(ctx, c, q) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&node, "node", "", "replace all sessions on this node")
	f.BoolVar(&q.All, "all", false, "replace all sessions")
	f.IntVar(&q.Parallel, "parallel", 1, fmt.Sprintf("how many sessions to replace at a time, up to %d", api.MaxReplaceParallel))
	f.IntVar(&q.MaxUnavailable, "max-unavailable", 0, "of a group: end that many replicas at a time before they start again (0: a new replica first)")
	f.BoolVar(&stop, "stop", false, "end the replacement of a group after the present replica")
	f.DurationVar(&timeout, "timeout", api.DefaultReplaceTimeout, "longest time for one session, such as 30s or 10m")
	a.completeNodeFlag(cmd)
	return cmd
}

func checkReplace(cmd *cobra.Command, q api.ReplaceRequest, timeout time.Duration) error {
	ways := 0
	for _, given := range []bool{len(q.Keys) > 0, cmd.Flags().Changed("node"), q.All} {
		if given {
			ways++
		}
	}
	switch {
	case ways == 0:
		return usage(cmd, errors.New("there is nothing to replace: name keys, a --node, or --all"))
	case ways > 1:
		return usage(cmd, errors.New("keys, --node and --all do not go together"))
	case cmd.Flags().Changed("node") && q.Node == "":
		return usage(cmd, errors.New("--node is empty"))
	case q.MaxUnavailable < 0 || q.MaxUnavailable > holdfast.MaxReplicas:
		return usage(cmd, fmt.Errorf("--max-unavailable is %d, it must be between 0 and %d", q.MaxUnavailable, holdfast.MaxReplicas))
	case q.MaxUnavailable > 0 && (len(q.Keys) == 0 || cmd.Flags().Changed("parallel")):
		return usage(cmd, errors.New("--max-unavailable needs a group, and replaces --parallel"))
	case q.Parallel < 1 || q.Parallel > api.MaxReplaceParallel:
		return usage(cmd, fmt.Errorf("--parallel is %d, it must be between 1 and %d", q.Parallel, api.MaxReplaceParallel))
	case timeout <= 0 || timeout > api.MaxReplaceTimeout:
		return usage(cmd, fmt.Errorf("--timeout is %v, it must be over 0 and at most %v", timeout, api.MaxReplaceTimeout))
	}
	return nil
}

func (a *app) replace(ctx context.Context, c *client.Client, q api.ReplaceRequest) error {
	live := a.ui.replaceProgress()
	var rows []holdfast.Replacement
	group := false
	rep, err := c.Replace(ctx, q, func(ev api.ReplaceEvent) {
		live.step(ev)
		if ev.Ended != nil {
			rows = append(rows, *ev.Ended)
		}
		group = group || ev.Progress != nil
	})
	live.close()
	if err != nil && len(rows) > 0 && !a.ui.json {
		rep.Rows = rows // the part that is done
		err = errors.Join(err, a.ui.result(nil, func(w io.Writer) { replacementTable(w, rows) }))
	} else if err == nil {
		err = a.replaced(rep)
	}
	if err != nil && group && ctx.Err() != nil {
		return holdfast.WithHint(err, fmt.Sprintf("the replacement goes on; `holdfast session replace %s --stop` ends it after the present replica", q.Keys[0]))
	}
	if err != nil && ctx.Err() != nil {
		return holdfast.WithHint(err, "running replacements are finished, and no more are begun; `holdfast session replacements` will show them")
	}
	return err
}

// stopReplacing ends the replacement of a group after the present replica.
func (a *app) stopReplacing(cmd *cobra.Command, q api.ReplaceRequest) error {
	if len(q.Keys) != 1 {
		return usage(cmd, errors.New("--stop needs the name of one group"))
	}
	return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
		name := string(q.Keys[0])
		if err := c.StopReplacing(ctx, name); err != nil {
			return err
		}
		a.ui.note("the replacement of %s ends after the present replica", name)
		return nil
	})
}

// replaced prints the report. Its error says what failed.
func (a *app) replaced(r holdfast.ReplaceReport) error {
	if err := a.ui.result(r, func(w io.Writer) { replaceText(w, r) }); err != nil || r.Failed() == 0 && len(r.Unbegun) == 0 {
		return err
	}
	msg := count(r.Failed(), "session") + " failed"
	for _, row := range r.Rows {
		if row.Error != "" {
			msg += fmt.Sprintf("; %s: %s", row.Key, clean(row.Error))
		}
	}
	if n := len(r.Unbegun); n > 0 {
		msg += fmt.Sprintf("; %s not touched: %s", count(n, "session"), firstFew(texts(r.Unbegun), ", "))
	}
	return Partial(errors.New(msg), "see `holdfast session show KEY` and the node's log; after the repair, replace the rest")
}

func replaceText(w io.Writer, r holdfast.ReplaceReport) {
	if len(r.Rows) > 0 {
		replacementTable(w, r.Rows)
	}
	fmt.Fprintf(w, "%s replaced in %s\n", count(len(r.Rows)-r.Failed(), "session"), r.Took)
	if len(r.Gone) > 0 {
		fmt.Fprintf(w, "ended on their own meanwhile: %s\n", firstFew(texts(r.Gone), ", "))
	}
	if r.Notice != "" {
		fmt.Fprintf(w, "notice: %s\n", clean(r.Notice))
	}
}

func replacementTable(w io.Writer, rows []holdfast.Replacement) {
	shown := phasesOf(rows)
	fmt.Fprintln(w, replacementHead(shown))
	for _, r := range rows {
		fmt.Fprintln(w, replacementRow(r, shown, phaseText(r.Total)))
	}
}

// phasesOf returns the phases that a table of the rows shows: init, start and ready, and
// every other one that one of the rows has. A short place or image is not shown: it is the
// time of a claim, or of a look for the image.
func phasesOf(rows []holdfast.Replacement) []replace.Phase {
	return slices.DeleteFunc(replace.ComparedPhases(), func(p replace.Phase) bool {
		switch p.Name {
		case "init", "start", "ready":
			return false
		}
		return !slices.ContainsFunc(rows, func(r holdfast.Replacement) bool { return p.Of(r) >= shortPhase || r.Replica != nil && p.Of(r) > 0 })
	})
}

// shortPhase is the time from which on a phase is shown that is usually short.
const shortPhase = holdfast.Millis(time.Second)

func replacementHead(shown []replace.Phase) string {
	names := []string{"INSTANCE", "FROM", "TO"}
	for _, p := range shown {
		names = append(names, strings.ToUpper(p.Name))
	}
	return strings.Join(append(names, "TOTAL", "ERROR"), "\t")
}

func replacementRow(r holdfast.Replacement, shown []replace.Phase, total string) string {
	name := string(r.Key)
	if r.Replica != nil {
		name = string(r.Replica.Old) + " → " + name
	}
	fields := []string{name, dash(string(r.From)), dash(string(r.To))}
	for _, p := range shown {
		fields = append(fields, phaseText(p.Of(r)))
	}
	return strings.Join(append(fields, total, dash(r.Error)), "\t")
}

// phaseText formats the time of a phase, "-" if there was none.
func phaseText(m holdfast.Millis) string {
	if m == 0 {
		return "-"
	}
	return m.String()
}
