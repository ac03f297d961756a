package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/hosts/doctor/profile"
)

func (a *app) diffCmd() *cobra.Command {
	var page string
	top := defaultTop
	cmd := &cobra.Command{
		Use:   "diff GOOD BAD",
		Short: "Show what a slow host's CPUs do that a healthy host's do not",
		Long: "Compare two recordings of `holdfast doctor record`, of a healthy host and of a slow one, or of one host before and\n" +
			"after: the increase by container, by path through the kernel and by function. Figures are shares of the host's\n" +
			"CPU capacity. Containers are matched by name, or else by image. No root, agent or network is needed.",
		Example: "  holdfast doctor diff good.pb.gz bad.pb.gz\n  holdfast doctor diff good.pb.gz bad.pb.gz --html diff.html",
		Args:    args(2, 2, "two files, of a good and of a bad recording"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if top < 1 {
				return usage(cmd, fmt.Errorf("--top is %d, it must be at least 1", top))
			}
			var sides [2]*profile.Profile
			for i, file := range words {
				var err error
				if sides[i], err = profile.Open(file); err != nil {
					return holdfast.WithHint(err, "`holdfast doctor record -o FILE` writes such a file")
				}
			}
			d := profile.Compare(sides[0], sides[1])
			if page != "" {
				out, err := profile.Create(page)
				if err != nil {
					return err
				}
				if err := out.CommitWith(d.WritePage); err != nil {
					return err
				}
				a.ui.note("the page with the flame graphs is %s", clean(page))
			}
			shown := d.Top(top)
			return a.ui.result(shown, func(w io.Writer) { printDiff(w, shown) })
		},
	}
	cmd.Flags().StringVar(&page, "html", "", "write a page with flame graphs to this file")
	cmd.Flags().IntVar(&top, "top", top, "lines of each table")
	return cmd
}

func printDiff(w io.Writer, d profile.Diff) {
	fmt.Fprint(w, "\tHOST\tLINUX\tCPUS\tSECONDS\tSAMPLES\tBUSY\n")
	for i, s := range []profile.Side{d.Good, d.Bad} {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%.1f\t%d\t%.1f %%\n", [2]string{"good", "bad"}[i], dash(s.Meta.Host), dash(s.Meta.Kernel), s.Meta.CPUs,
			s.Meta.Seconds, s.Samples, 100*s.Busy)
	}
	printEach(w, "note", d.Notes)
	if len(d.Containers)+len(d.Kernel)+len(d.Functions) == 0 {
		fmt.Fprintln(w, "\nnothing changed by more than chance")
		return
	}
	printChanges(w, "CONTAINER\tOF IT IN THE KERNEL", d.Containers, func(c profile.Change) string {
		return fmt.Sprintf("%s\t%+.1f", dash(c.Container), 100*c.Kernel)
	})
	printChanges(w, "CONTAINER\tPATH THROUGH THE KERNEL", d.Kernel, func(c profile.Change) string {
		return dash(c.Container) + "\t" + pathLine(c.Path)
	})
	printChanges(w, "CONTAINER\tFUNCTION", d.Functions, func(c profile.Change) string {
		return dash(c.Container) + "\t" + dash(c.Function)
	})
}

// printChanges prints a table of changes in percent of the host's CPUs.
func printChanges(w io.Writer, head string, list []profile.Change, what func(profile.Change) string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\nCHANGE\tGOOD %%\tBAD %%\t%s\n", head)
	for _, c := range list {
		fmt.Fprintf(w, "%+.1f\t%.1f\t%.1f\t%s\n", 100*c.Grew, 100*c.Good, 100*c.Bad, what(c))
	}
}
