package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/hosts/doctor/watch"
)

func (a *app) doctorStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status [NODE]",
		Short: "Show the agent's current diagnosis of a host",
		Long: "Show the diagnosis of the doctor that runs in the agent: open findings with their age, the host's facts, and the doctor's cost.\n" +
			"Without NODE it is the agent's own host. The exit code is 9 if a finding of severity warning or critical is open.",
		Example: "  holdfast doctor status\n  holdfast doctor status web-1 --json",
		Args:    oneNode(), ValidArgsFunction: onlyOne(a.completeNode),
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				s, err := c.DoctorStatus(ctx, nodeArg(words))
				if err := show(a.ui, s, err, a.statusText); err != nil {
					return err
				}
				if slices.ContainsFunc(s.Findings, func(o watch.Open) bool { return o.Severity != rule.Notice }) {
					return Exit(exitFindings)
				}
				return nil
			})
		},
	}
}

func (a *app) statusText(w io.Writer, s api.DoctorStatus) {
	now := a.deps.Now()
	if s.At.IsZero() {
		fmt.Fprintf(w, "node %s: the first round has not ended\n", clean(string(s.Node)))
		return
	}
	fmt.Fprintf(w, "node %s, Linux %s, observed %s ago\n", clean(string(s.Node)), dash(s.Kernel), age(now, s.At))
	fmt.Fprintf(w, "%d rounds, every %.0f s, and %s, for %.2f %% of one core\n", s.Cost.Rounds, s.Cost.Every, count(int(s.Cost.Bursts), "deeper look"), 100*s.Cost.Share())
	if s.Degraded != "" {
		where := "the node accepts sessions in spite of it: too many other nodes are out of rotation, or there is no other node"
		if s.Resting {
			where = "new sessions go to other nodes"
		}
		fmt.Fprintf(w, "degraded for %s: %s\n", age(now, s.DegradedSince), where)
	}
	fmt.Fprintln(w)
	for _, o := range s.Findings {
		fmt.Fprintf(w, "open for %s: ", age(now, o.Since))
		printFinding(w, o.Finding)
	}
	if len(s.Findings) == 0 {
		fmt.Fprint(w, "no findings\n\n")
	}
	printFacts(w, s.Facts)
	var not []string
	for _, c := range s.Checked {
		if c.Verdict == doctor.NotJudged {
			not = append(not, c.Rule)
		}
	}
	if len(not) > 0 {
		fmt.Fprintf(w, "\nneed `holdfast doctor`, or cannot be judged: %s\n", strings.Join(not, ", "))
	}
	for _, g := range s.Gaps {
		fmt.Fprintf(w, "cannot be observed: %s: %s\n", clean(g.Sees), clean(g.Why))
	}
}

// printFacts prints the facts of the whole host.
func printFacts(w io.Writer, facts []fact.Fact) {
	facts = slices.DeleteFunc(slices.Clone(facts), func(f fact.Fact) bool { return !f.Subject.IsHost() || f.Unit == fact.Word })
	sort.Slice(facts, func(i, j int) bool { return facts[i].Name < facts[j].Name })
	for _, f := range facts {
		fmt.Fprintf(w, "  %s\t%s\n", clean(f.Name), figure(f.Value, f.Unit))
	}
}

// figure formats a fact's value in its unit.
func figure(v float64, u fact.Unit) string {
	switch u {
	case fact.Bytes:
		return size(int64(v))
	case fact.Share:
		return fmt.Sprintf("%.1f%%", 100*v)
	case fact.Count:
		return digits(v)
	}
	return fmt.Sprintf("%s %s", digits(v), u)
}

// digits formats a number with four digits, or with all digits before the point.
func digits(v float64) string {
	if v >= 1000 || v <= -1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

func (a *app) doctorHistory() *cobra.Command {
	var (
		since string
		limit int
		facts bool
	)
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show past findings, or follow new ones",
		Long: "Show findings that began, changed and ended on the agent's host, the newest first. They are kept for a week.\n" +
			"With --facts --json there are also the host's facts over time: each minute of the last day, and every ten minutes before.",
		Example: "  holdfast doctor history\n  holdfast doctor history --since 24h --json --facts\n  holdfast doctor history --follow",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return atLeast(cmd, "limit", limit, 0) },
	}
	follow := false
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var from time.Time
		if since != "" {
			var err error
			if from, err = parseMoment(a.deps.Now(), since); err != nil {
				return usage(cmd, fmt.Errorf("--since: %w", err))
			}
		}
		if follow {
			return a.with(cmd, noLimit, a.followEvents)
		}
		return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
			h, err := c.DoctorHistory(ctx, from, limit, facts)
			return show(a.ui, h, err, func(w io.Writer, h watch.History) { a.eventsText(w, h.Events) })
		})
	}
	f := cmd.Flags()
	f.StringVar(&since, "since", "", "only those of that time or later: a time ago (24h, 7d), a date or a time")
	f.IntVar(&limit, "limit", 100, "at most that many; 0 is all that are kept")
	f.BoolVar(&facts, "facts", false, "with --json, also the host's facts over time")
	f.BoolVar(&follow, "follow", false, "print new events until interrupted")
	return cmd
}

// followEvents prints events as they happen.
func (a *app) followEvents(ctx context.Context, c *client.Client) error {
	return c.DoctorEvents(ctx, func(e watch.Event) {
		if a.ui.json {
			_ = a.ui.result(e, nil) // a closed pipe ends the command
			return
		}
		fmt.Fprintf(a.ui.out, "%s %s\n", stamp(e.At), eventLine(e))
	})
}

func (a *app) eventsText(w io.Writer, events []watch.Event) {
	if len(events) == 0 {
		fmt.Fprintln(w, "there are no findings")
		return
	}
	fmt.Fprintln(w, "AGE\tEVENT\tSEVERITY\tRULE\tLASTED\tBY\tWHAT")
	for _, e := range events {
		lasted := "-"
		if e.Kind == watch.Ended {
			lasted = age(e.At, e.Since)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", age(a.deps.Now(), e.At), e.Kind, e.Finding.Severity, clean(e.Finding.Rule), lasted,
			dash(shortSubject(e.Finding.Subject)), clean(e.Finding.Title))
	}
}

func eventLine(e watch.Event) string {
	s := fmt.Sprintf("%s: %s %s: %s", e.Kind, e.Finding.Severity, clean(e.Finding.Rule), clean(e.Finding.Title))
	if subject := shortSubject(e.Finding.Subject); subject != "" {
		s += " (" + clean(subject) + ")"
	}
	return s
}

// shortSubject returns the best name of a culprit.
func shortSubject(subject *doctor.Subject) string {
	if subject == nil {
		return ""
	}
	if subject.Pod != nil && subject.Pod.Name != "" {
		return podLine(*subject.Pod)
	}
	id := ""
	if subject.ContainerID != "" {
		id = shortID(subject.ContainerID)
	}
	return cmp.Or(subject.Container, id, subject.Cgroup, subject.Command)
}
