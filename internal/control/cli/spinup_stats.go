package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/spinup"
)

// statsLimit is enough to read all records and compare many groups.
const statsLimit = time.Minute

func (a *app) spinupStats() *cobra.Command {
	var (
		f                        spinupFilter
		by, against, before, dir string
		fleet                    bool
	)
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show how often each phase was slow, and whether groups differ",
		Long: "Show for each group and phase the number of judged and slow spin-ups, the median and the slow tail, each with its 95 % confidence interval (\"?\": too few records).\n" +
			"The groups are compared with the largest one, or with that of --against. With --before, spin-ups that began since that time are compared with earlier ones.\n" +
			"\"better\" and \"worse\" mean that chance does not explain the difference; \"no difference shown\" does not exclude a difference.\n" +
			"With --fleet the agent asks all nodes and merges their answers. Nodes that do not answer are named.",
		Example: "  holdfast spinup stats --since 24h --by driver\n  holdfast spinup stats --by engine --against 'docker 20.10.24' --kind run\n  holdfast spinup stats --before 2026-11-01 --since 30d\n  holdfast spinup stats --fleet --by node --since 7d",
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := a.deps.Now()
			filter, err := f.filter(cmd, now)
			if err != nil {
				return err
			}
			q := spinup.Question{Filter: filter, By: spinup.By(by), Against: against}
			if before != "" {
				if q.At, err = parseMoment(now, before); err != nil {
					return usage(cmd, fmt.Errorf("--before: %w", err))
				}
			}
			if err := q.Check(); err != nil {
				return usage(cmd, err)
			}
			if fleet && dir != "" {
				return usage(cmd, errors.New("--fleet asks the agents of the nodes, and --data-dir reads without an agent"))
			}
			if fleet {
				return a.with(cmd, statsLimit, func(ctx context.Context, c *client.Client) error {
					r, err := c.FleetSpinupReport(ctx, q)
					return show(a.ui, r, hintNotFound(err, "without --against every group is listed"), fleetReportText)
				})
			}
			return a.withSpinups(cmd, statsLimit, dir, func(ctx context.Context, s *client.Client) error {
				r, err := s.SpinupReport(ctx, q)
				return show(a.ui, r, hintNotFound(err, "without --against every group is listed"), reportText)
			})
		},
	}
	f.flags(cmd)
	s := cmd.Flags()
	s.StringVar(&by, "by", "", "what makes a group: "+strings.Join(groupings(), ", "))
	s.StringVar(&against, "against", "", "the group that the others are compared with (default the largest)")
	s.StringVar(&before, "before", "", "compare spin-ups that began since this time with earlier ones: a time ago, a date or a time")
	s.BoolVar(&fleet, "fleet", false, "of all nodes of the fleet, not of this host only")
	dataDirFlag(cmd, &dir)
	completeWords(cmd, "by", groupings()...)
	return cmd
}

func groupings() []string { return texts(spinup.Groupings()) }

// hintNotFound adds a hint to a not-found error about an object that is not a session.
// err may be nil.
func hintNotFound(err error, hint string) error {
	if errors.Is(err, holdfast.ErrNotFound) && holdfast.HintOf(err) == "" {
		return holdfast.WithHint(err, hint)
	}
	return err
}

// maxMissing is the number of nodes without an answer that are shown.
const maxMissing = 10

func fleetReportText(w io.Writer, r spinup.FleetReport) {
	fmt.Fprintf(w, "%s answered\n", count(r.Nodes, "node"))
	for i, m := range r.NoAnswer {
		if i == maxMissing {
			fmt.Fprintf(w, "no answer: %d more nodes\n", len(r.NoAnswer)-i)
			break
		}
		fmt.Fprintf(w, "no answer: %s: %s\n", clean(string(m.Node)), clean(m.Why))
	}
	reportText(w, r.Report)
}

func reportText(w io.Writer, r spinup.Report) {
	if r.Count == 0 {
		fmt.Fprintln(w, "no recorded spin-up matches")
		return
	}
	fmt.Fprintf(w, "%s from %s to %s\n\n", count(r.Count, "spin-up"), stamp(r.Oldest), stamp(r.Newest))
	fmt.Fprintln(w, "GROUP\tCOUNT\tFAILED\tSTOPPED\tCACHED")
	for _, g := range r.Groups {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", dash(g.Name), g.Count, g.Failed, g.Stopped, g.Cached)
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(w, "… and %s\n", count(r.LeftOut, "smaller group"))
	}
	phaseTable(w, r.Groups)
	for _, c := range r.Compared {
		comparisonTable(w, c)
	}
}

func phaseTable(w io.Writer, groups []spinup.Group) {
	if !slices.ContainsFunc(groups, func(g spinup.Group) bool { return len(g.Phases) > 0 }) {
		fmt.Fprintln(w, "\nno group has a phase that can be judged")
		return
	}
	fmt.Fprintln(w, "\nGROUP\tPHASE\tJUDGED\tSLOW\t\tMEDIAN\t1 IN 10\t1 IN 100")
	for _, g := range groups {
		for _, p := range g.Phases {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s", dash(g.Name), p.Phase, p.Judged, p.Slow, shareText(p.Share), quantile(p.Phase, p.P50, p.P50Range))
			if p.Phase.IsRate() { // for a rate the slow tail is the low end
				fmt.Fprintf(w, "\t%s\t-\n", quantile(p.Phase, p.P10, p.P10Range))
			} else {
				fmt.Fprintf(w, "\t%s\t%s\n", quantile(p.Phase, p.P90, p.P90Range), quantile(p.Phase, p.P99, p.P99Range))
			}
		}
	}
}

func comparisonTable(w io.Writer, c spinup.Comparison) {
	fmt.Fprintf(w, "\n%s, compared with %s:\n", dash(c.B), dash(c.A))
	if len(c.Phases) == 0 {
		fmt.Fprintln(w, "the groups have no phase in common that can be judged")
		return
	}
	fmt.Fprintln(w, "PHASE\tJUDGED\tSLOW\tDIFFERENCE\tVERDICT\tMEDIAN\tRATIO\tVERDICT")
	for _, d := range c.Phases {
		fmt.Fprintf(w, "%s\t%d, %d\t%s → %s\t%s\t%s\t%s → %s\t%s\t%s\n", d.Phase, d.A, d.B,
			percent(d.SlowA), percent(d.SlowB), pointsText(d.Slow), verdict(d.SlowChange),
			valueText(d.Phase, d.MedianA), valueText(d.Phase, d.MedianB), ratioText(d), verdict(d.MedianChange))
	}
}

// verdict returns a difference in capitals.
func verdict(c spinup.Change) string {
	if c == spinup.Better || c == spinup.Worse {
		return strings.ToUpper(string(c))
	}
	return clean(string(c))
}

func percent(share float64) string {
	if share > 0 && share < .0995 {
		return fmt.Sprintf("%.1f%%", 100*share)
	}
	return fmt.Sprintf("%.0f%%", 100*share)
}

func shareText(s spinup.Share) string {
	return fmt.Sprintf("%s (%s to %s)", percent(s.Value), percent(s.Low), percent(s.High))
}

// pointsText formats a difference of shares, in percentage points.
func pointsText(s spinup.Share) string {
	return fmt.Sprintf("%+.1f (%+.1f to %+.1f)", 100*s.Value, 100*s.Low, 100*s.High)
}

// maxShownRatio is the largest ratio that is shown.
const maxShownRatio = 1000

func ratioText(d spinup.Difference) string {
	if d.MedianChange == spinup.TooFew || d.Ratio.Value > maxShownRatio {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", d.Ratio.Value, d.Ratio.Low, min(d.Ratio.High, maxShownRatio))
}

// quantile formats a percentile with its confidence interval.
func quantile(p spinup.Phase, v float64, r spinup.Range) string {
	low, high := "?", "?"
	if r.LowKnown {
		low = valueText(p, r.Low)
	}
	if r.HighKnown {
		high = valueText(p, r.High)
	}
	return valueText(p, v) + " (" + low + " to " + high + ")"
}

// valueText formats a rate in MiB/s, and other values as a time.
func valueText(p spinup.Phase, v float64) string {
	if p.IsRate() {
		return fmt.Sprintf("%.1fMiB/s", v)
	}
	return holdfast.Millis(v * float64(time.Second)).String()
}

func sizeText(n int64) string {
	if n <= 0 {
		return "-"
	}
	return units.BytesSize(float64(n))
}
