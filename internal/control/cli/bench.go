package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func (a *app) benchCmd() *cobra.Command {
	var subs []*cobra.Command
	for _, b := range a.deps.Benches {
		subs = append(subs, a.oneBench(b))
	}
	return group(&cobra.Command{
		Use:     "bench",
		Short:   "Measure Holdfast beside its peers on this machine",
		Long:    "Measure Holdfast beside its peers, in one run on this machine. A score over 1 is better than the peer.",
		Example: "  holdfast bench kill -n 200",
	}, subs...)
}

func (a *app) oneBench(b Bench) *cobra.Command {
	cmd := &cobra.Command{Use: b.Name, Short: b.Short, Long: b.Short + ".", Example: "  " + b.Example, Args: noArgs()}
	run := b.Setup(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := a.limited(cmd, noLimit)
		defer cancel()
		progress := a.ui.err
		if a.ui.json {
			progress = io.Discard
		}
		r, err := run(ctx, progress)
		if err != nil {
			err = fmt.Errorf("bench %s: %w", b.Name, err)
			if u := (*usageError)(nil); errors.As(err, &u) && u.hint == "" {
				return usage(cmd, err)
			}
			return err
		}
		var text error
		if err := a.ui.result(r, func(w io.Writer) { text = r.WriteText(w) }); err != nil {
			return err
		}
		if text == nil && r.Failed > 0 {
			return fmt.Errorf("bench %s: %s failed", b.Name, count(r.Failed, "operation"))
		}
		return text
	}
	return cmd
}
