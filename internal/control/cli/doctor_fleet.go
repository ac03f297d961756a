package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/doctor/ranking"
)

func (a *app) doctorFleet() *cobra.Command {
	var by string
	limit := 15
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Rank the facts that separate the fleet's slow hosts from the fast ones",
		Long: "Split the fleet's nodes into slow and fast ones by their own spin-up times, and rank facts by how well they separate the two.\n" +
			"SEPARATION is the share of pairs of a slow and a fast node in which the slow one has the higher (or lower) value: 50 % is chance, 100 % is always.\n" +
			"CHANCE is the probability that the best of all these facts separates so well by chance (Mann-Whitney, corrected by Holm's method): * marks those under 5 %.\n" +
			"A fact that separates is not necessarily the cause: facts correlate.",
		Example: "  holdfast doctor fleet\n  holdfast doctor fleet --by slow --json",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return atLeast(cmd, "limit", limit, 1) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			split, err := ranking.ParseBy(by)
			if err != nil {
				return usage(cmd, fmt.Errorf("--by: %w", err))
			}
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				r, err := c.DoctorFleet(ctx, split)
				return show(a.ui, r, err, func(w io.Writer, r ranking.Ranking) { rankingText(w, r, limit) })
			})
		},
	}
	cmd.Flags().StringVar(&by, "by", string(ranking.ByP50), "split nodes by p50 or p99 of a container's create and start, or by slow: the share of slow spin-ups")
	cmd.Flags().IntVar(&limit, "limit", limit, "show at most that many facts")
	return cmd
}

func rankingText(w io.Writer, r ranking.Ranking, limit int) {
	show := func(v float64) string {
		if r.By == ranking.BySlow {
			return fmt.Sprintf("%.1f%%", 100*v)
		}
		return fmt.Sprintf("%.2f s", v)
	}
	if len(r.Facts) > 0 {
		fmt.Fprintf(w, "%d slow nodes, median %s; %d fast ones, %s\n", r.Slow.Nodes, show(r.Slow.Median), r.Fast.Nodes, show(r.Fast.Median))
		var slow []string
		for _, n := range r.Nodes {
			if n.Slow && len(slow) < 10 {
				slow = append(slow, clean(string(n.Node)))
			}
		}
		more := ""
		if r.Slow.Nodes > len(slow) {
			more = ", …"
		}
		fmt.Fprintf(w, "slow: %s%s\n\n", strings.Join(slow, ", "), more)
		fmt.Fprintln(w, "FACT\tSLOW NODES\tFAST NODES\tSEPARATION\tCHANCE\tN")
		for _, f := range r.Facts[:min(limit, len(r.Facts))] {
			mark := ""
			if f.Separates {
				mark = " *"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%.0f%% %s\t%s%s\t%d+%d\n", clean(f.Name), digits(f.Slow), digits(f.Fast), 100*f.Separation(), side(f.AUC), chance(f.Corrected), mark, f.NSlow, f.NFast)
		}
		if n := len(r.Facts) - limit; n > 0 {
			fmt.Fprintf(w, "and %s more that separate less\n", count(n, "fact"))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, clean(r.Verdict))
	if len(r.Same) > 0 && len(r.Facts) > 0 {
		fmt.Fprintf(w, "the same on all nodes: %s\n", clean(strings.Join(r.Same, ", ")))
	}
	for _, l := range r.LeftOut {
		fmt.Fprintf(w, "left out: %s: %s\n", clean(string(l.Node)), clean(l.Why))
	}
}

// side returns the side on which a fact separates.
func side(auc float64) string {
	if auc >= 0.5 {
		return "more"
	}
	return "less"
}

func chance(p float64) string {
	if p < 0.0001 {
		return "<0.01%"
	}
	return fmt.Sprintf("%.2g%%", 100*p)
}
